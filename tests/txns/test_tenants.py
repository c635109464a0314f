"""Apps of transactions belong to whom their names do: no key touches, sees or blocks an app outside its prefixes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.test_backup import begin, read_all, unpacked
from tests.faults import FaultyDisk
from tests.serving import Client, ServerProcess, serving
from tests.txns.rig import TxnRig
from topics.engine.transactions import ledger
from topics.engine.transactions.ledger import Ledger
from topics.engine.transactions.ops import TxnCommitted, decode_committed
from topics.model.errors import Fenced, InvalidRequest, StageNotFound
from topics.model.requests.transactions import EMPTY_RAISE_MAX

VERSION_MAX = 2**63 - 1
KEYS = "root,good:rw+d:good:,evil:rw+d+a:evil:,slash:rw+d:good:app/"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("tenants") / "data", api_keys=KEYS) as server:
        server.key = "root"
        yield server


@pytest.fixture
def good(server: ServerProcess) -> Client:
    return server.client("good")


@pytest.fixture
def evil(server: ServerProcess) -> Client:
    return server.client("evil")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TxnRig]:
    with TxnRig(tmp_path / "data") as rig:
        yield rig


def stage(client: Client, app: str, version: int, *payloads: Any, topic: str, name: str = "s") -> int:
    records = [{"data": payload} for payload in payloads]
    body = {"stage": name, "topic": topic, "records": records}
    return client.post(f"/v0/txns/{app}/{version}/stage", body).status


STAGE = {"stage": "x", "topic": "evil:t", "records": [{"data": 1}]}
ROUTES = [
    ("POST", "/v0/txns/good:app/2/stage", STAGE),
    ("POST", f"/v0/txns/good:app/{VERSION_MAX}/commit", {}),
    ("POST", "/v0/txns/good:app/1/commit", {"stages": ["s"]}),
    ("POST", "/v0/txns/good:app/2/abort", {"stages": ["s"]}),
    ("POST", "/v0/txns/good:app/fence", {}),
    ("GET", "/v0/txns/good:app", None),
    ("DELETE", "/v0/txns/good:app", None),
]


@pytest.mark.parametrize("key", ["evil", "slash"])
@pytest.mark.parametrize(("method", "path", "body"), ROUTES)
def test_no_route_lets_a_key_at_an_app_outside_its_prefixes(
    server: ServerProcess, good: Client, key: str, method: str, path: str, body: Any
) -> None:
    assert stage(good, "good:app", 2, "mine", topic="good:t") == 200
    before = good.get("/v0/txns/good:app").json
    refused = server.client(key).request(method, path, body)
    assert (refused.status, refused.code) == (403, "forbidden")
    assert refused.detail["name"] == "good:app"
    after = good.get("/v0/txns/good:app").json
    assert (after["version"], after["fence"], after["stages"]) == (before["version"], before["fence"], before["stages"])


def test_a_list_has_only_the_apps_that_the_key_may_touch(good: Client, evil: Client) -> None:
    for number in range(4):
        assert good.post(f"/v0/txns/good:list-{number}/1/commit", {}).status == 200
    assert evil.post("/v0/txns/evil:own/1/commit", {}).status == 200
    listed = evil.get("/v0/txns?page_size=1").json
    assert [item["app"] for item in listed["apps"]] == ["evil:own"]
    assert listed["next_cursor"] is None
    assert evil.get("/v0/txns?prefix=good:").json["apps"] == []
    found: list[str] = []
    cursor = ""
    while True:
        page = good.get(f"/v0/txns?prefix=good:list&page_size=3&cursor={cursor}").json
        found += [item["app"] for item in page["apps"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert found == [f"good:list-{number}" for number in range(4)]


def test_an_owner_of_the_name_commits_whatever_another_key_tries(good: Client, evil: Client) -> None:
    assert evil.post(f"/v0/txns/good:live/{VERSION_MAX}/commit", {}).status == 403
    assert stage(good, "good:live", 1, "kept", topic="good:live") == 200
    done = good.post("/v0/txns/good:live/1/commit", {"stages": ["s"]}).json
    assert (done["committed"], done["deduped"]) == (True, False)
    assert good.payloads("good:live") == ["kept"]


# --- versions ---


def test_a_commit_of_stages_that_were_never_there_is_not_taken_for_done(rig: TxnRig) -> None:
    rig.stage("app", 5, "a", 1, topic="t")
    rig.stage("app", 5, "b", 2, topic="t")
    rig.commit("app", 5, "a", "b")
    assert rig.commit("app", 5, "b", "a").deduped
    for version, stages in ((5, ("a",)), (5, ("other",)), (5, ("a", "b", "c")), (4, ("a", "b")), (3, ("x",))):
        with pytest.raises(StageNotFound):
            rig.commit("app", version, *stages)
    # Without stages nothing can be lost: it is done.
    assert rig.commit("app", 4).deduped
    assert rig.payloads("t") == [1, 2]


@pytest.mark.parametrize("checkpointed", [False, True])
def test_which_stages_a_commit_named_is_known_after_a_crash(rig: TxnRig, checkpointed: bool) -> None:
    rig.stage("app", 5, "a", 1, topic="t")
    rig.commit("app", 5, "a")
    if checkpointed:
        rig.checkpoint()
    rig.crash()
    assert rig.commit("app", 5, "a").deduped
    with pytest.raises(StageNotFound):
        rig.commit("app", 5, "b")


def test_versions_may_leave_some_out_but_not_by_far_without_stages(rig: TxnRig) -> None:
    with pytest.raises(InvalidRequest, match="1000000") as refused:
        rig.commit("app", EMPTY_RAISE_MAX + 1)
    assert refused.value.detail["field"] == "version"
    rig.commit("app", 7)
    with pytest.raises(InvalidRequest):
        rig.commit("app", 7 + EMPTY_RAISE_MAX + 1)
    assert not rig.commit("app", 7 + EMPTY_RAISE_MAX).deduped
    rig.stage("app", VERSION_MAX, "a", 1, topic="t")
    assert not rig.commit("app", VERSION_MAX, "a").deduped


def test_a_commit_from_before_this_rule_is_still_done(rig: TxnRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of version 0.1 does not say which stages a commit named."""
    rig.stage("app", 5, "a", 1, topic="t")
    rig.commit("app", 5, "a")
    app = rig.store.state.feature(Ledger).by_name["app"]
    app.named = b""
    image = ledger.encode_app(app)
    assert ledger.encode_app(app) == image
    assert rig.commit("app", 5, "a").deduped
    old = TxnCommitted(1, "app", 5, 0, []).encode()
    # The array's head says six fields and the last is empty: five make the op of version 0.1.
    head = bytearray(old[5:-2])
    head[0] = 0x95
    decoded = decode_committed(old[:1] + len(head).to_bytes(4, "little") + bytes(head))
    assert decoded.named == b""


# --- tokens ---


@pytest.mark.parametrize("app", ["known", "unfenced", "new"])
def test_a_copy_gives_out_no_token_that_its_original_gave_out(tmp_path: Path, app: str) -> None:
    rig = TxnRig(tmp_path / "data")
    with rig:
        rig.take_fence("known")
        rig.commit("unfenced", 1)
        archive = read_all(begin(rig))
        given = {rig.take_fence(app) for _ in range(3)}
        rig.clock.advance(60_000)
        copy = TxnRig(unpacked(archive, tmp_path / "copy"), clock=rig.clock)
        with copy:
            # Who needs no token is not asked for one.
            copy.commit("unfenced", 2)
            token = copy.take_fence(app)
            assert token > max(given)
            copy.checkpoint()
            copy.reopen()
            assert copy.take_fence("another") > max(given)
            assert copy.take_fence(app) == token + 1
            with pytest.raises(Fenced):
                copy.commit(app, 9, fence=max(given))
            copy.crash()
            assert copy.take_fence("one-more") > max(given)


def test_a_power_failure_right_after_the_start_of_a_copy_brings_no_token_back(tmp_path: Path) -> None:
    with TxnRig(tmp_path / "data") as rig:
        archive = read_all(begin(rig))
        given = rig.take_fence("app")
        disk = FaultyDisk()
        with TxnRig(unpacked(archive, tmp_path / "copy"), clock=rig.clock, disk=disk) as copy:
            after = disk.power_loss(copy.path, tmp_path / "after", "drop")
        with TxnRig(tmp_path / "after", clock=rig.clock, disk=after) as copy:
            assert copy.take_fence("app") > given


# --- routers and pipelines ---


def test_a_router_between_topics_of_others_is_not_replaced(server: ServerProcess, evil: Client) -> None:
    root = server.client()
    assert root.put("/v0/routers/evil:bait", {"source": "good:a", "dest": "good:b"}).status == 201
    mine = {"source": "evil:a", "dest": "evil:b"}
    refused = evil.put("/v0/routers/evil:bait", mine)
    assert (refused.status, refused.code) == (403, "forbidden")
    assert root.get("/v0/routers/evil:bait").json["source"] == "good:a"
    assert evil.put("/v0/routers/evil:own", mine).status == 201
    assert evil.put("/v0/routers/evil:own", {**mine, "preserve_tag": False}).status == 200


def test_a_pipeline_over_topics_of_others_is_not_replaced(server: ServerProcess, evil: Client) -> None:
    root = server.client()
    theirs = {"sources": {"rows": {"topic": "good:a"}}, "sql": "SELECT * FROM rows", "sink": {"topic": "good:b"}}
    mine = {"sources": {"rows": {"topic": "evil:a"}}, "sql": "SELECT * FROM rows", "sink": {"topic": "evil:b"}}
    assert root.put("/v0/pipelines/evil:bait", theirs).status == 201
    refused = evil.put("/v0/pipelines/evil:bait", mine)
    assert (refused.status, refused.code) == (403, "forbidden")
    assert root.get("/v0/pipelines/evil:bait").json["definition"]["sink"]["topic"] == "good:b"
    assert evil.put("/v0/pipelines/evil:own", mine).status == 201
    assert evil.put("/v0/pipelines/evil:own", {**mine, "description": "again"}).status == 200


@pytest.mark.parametrize(("method", "suffix"), [("PUT", ""), ("GET", ""), ("DELETE", ""), ("POST", "/status")])
def test_names_of_pipelines_are_subject_to_prefixes(
    server: ServerProcess, evil: Client, method: str, suffix: str
) -> None:
    definition = {"sources": {"rows": {"topic": "evil:a"}}, "sql": "SELECT * FROM rows", "sink": {"topic": "evil:b"}}
    assert server.client().put("/v0/pipelines/good:theirs", definition).status in (200, 201)
    body = {"PUT": definition, "POST": {"runner": "r", "state": "running"}}.get(method)
    assert evil.request(method, f"/v0/pipelines/good:theirs{suffix}", body).status == 403
    listed = evil.get("/v0/pipelines").json["pipelines"]
    assert "good:theirs" not in [item["pipeline"] for item in listed]
