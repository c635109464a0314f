"""Jobs as an operator sees them: by state, by tag, in pages; and what one action does to all that are chosen."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving import Client, Reply, ServerProcess, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("data")) as server:
        yield server


class Desk:
    """A queue of 10 jobs with tags `a` and `b` in turn, and an eleventh that rests."""

    def __init__(self, client: Client, name: str, **config: Any) -> None:
        self.client, self.name = client, name
        client.put(f"/v0/topics/{name}", {"type": "queue", "dead_letter": f"{name}.dead", **config})
        jobs: list[dict[str, Any]] = [{"data": number, "tag": "ab"[number % 2]} for number in range(10)]
        client.post(f"/v0/topics/{name}", {"records": [*jobs, {"data": "late", "delay_ms": 600_000, "tag": "b"}]})

    def jobs(self, state: str, **query: object) -> list[Any]:
        """All pages."""
        found: list[Any] = []
        extra = "".join(f"&{key}={value}" for key, value in query.items())
        cursor = ""
        while True:
            reply = self.client.get(f"/v0/topics/{self.name}/jobs?state={state}{extra}{cursor}")
            assert reply.status == 200, reply
            found += reply.json["jobs"]
            if "next_cursor" not in reply.json:
                return found
            cursor = f"&cursor={reply.json['next_cursor']}"

    def seqs(self, state: str, **query: object) -> list[int]:
        return [job["$seq"] for job in self.jobs(state, **query)]

    def act(self, action: str, **body: Any) -> Reply:
        return self.client.post(f"/v0/topics/{self.name}/jobs", {"action": action, **body})

    def changed(self, action: str, **body: Any) -> int:
        reply = self.act(action, **body)
        assert reply.status == 200, reply
        return reply.json["changed"]

    def claim(self, count: int) -> list[Any]:
        return self.client.post(f"/v0/topics/{self.name}/claim", {"node": "w", "max": count}).json["claimed"]

    @property
    def counts(self) -> tuple[int, int, int, int]:
        queue = self.client.state(self.name)["queue"]
        return queue["ready"], queue["in_flight"], queue["delayed"], queue["dead"]


@pytest.fixture
def desk(server: ServerProcess, request: pytest.FixtureRequest) -> Desk:
    return Desk(server.client(), request.node.name.replace("[", "-").replace("]", ""))


def test_each_job_is_in_the_list_of_its_state(desk: Desk) -> None:
    desk.claim(3)
    assert desk.seqs("leased") == [1, 2, 3]
    assert desk.seqs("ready") == [4, 5, 6, 7, 8, 9, 10]
    assert desk.seqs("delayed") == [11]
    assert desk.seqs("dead") == []
    leased = desk.jobs("leased")[0]
    assert (leased["worker"], leased["deliveries"], leased["data"], leased["$tag"]) == ("w", 1, 0, "a")
    assert leased["deadline"] > leased["claimed_ts"]
    late = desk.jobs("delayed")[0]
    assert late["due"] - late["$ts"] == 600_000


@pytest.mark.parametrize("page_size", [1, 2, 7, 100])
def test_pages_hold_every_job_once(desk: Desk, page_size: int) -> None:
    desk.claim(4)
    assert desk.seqs("leased", page_size=page_size) == [1, 2, 3, 4]
    assert desk.seqs("ready", page_size=page_size) == [5, 6, 7, 8, 9, 10]
    assert desk.changed("bury", state="ready", all=True) == 6
    assert [job["src_seq"] for job in desk.jobs("dead", page_size=page_size)] == [5, 6, 7, 8, 9, 10]


def test_jobs_are_found_by_tag_and_by_the_start_of_it(desk: Desk) -> None:
    desk.claim(2)
    assert desk.seqs("ready", tag="a") == [3, 5, 7, 9]
    assert desk.seqs("leased", tag="b") == [2]
    assert desk.seqs("delayed", tag="b*") == [11]
    assert desk.seqs("ready", tag="c") == []


def test_a_job_that_was_given_back_is_ready_with_its_error(desk: Desk) -> None:
    desk.claim(1)
    desk.client.post(f"/v0/topics/{desk.name}/nack", {"node": "w", "seqs": [1], "error": "no route"})
    job = desk.jobs("ready")[0]
    assert (job["$seq"], job["deliveries"], job["error"]) == (1, 1, "no route")


def test_a_delayed_job_is_retried_now(desk: Desk) -> None:
    assert desk.changed("retry", seqs=[11], dry_run=True) == 1
    assert desk.counts == (10, 0, 1, 0)
    assert desk.changed("retry", seqs=[11]) == 1
    assert desk.counts == (11, 0, 0, 0)


def test_a_released_job_is_no_longer_its_workers(desk: Desk) -> None:
    desk.claim(2)
    assert desk.changed("release", seqs=[1]) == 1
    assert desk.counts == (9, 1, 1, 0)
    done = desk.client.post(f"/v0/topics/{desk.name}/ack", {"node": "w", "seqs": [1, 2]}).json
    assert (done["acked"], done["skipped"]) == (1, [1])


def test_all_leases_are_extended_once(desk: Desk) -> None:
    desk.claim(5)
    before = [job["deadline"] for job in desk.jobs("leased")]
    reply = desk.act("extend", all=True, lease_ms=3_000_000).json
    assert (reply["changed"], reply["more"]) == (5, False)
    assert min(job["deadline"] for job in desk.jobs("leased")) > max(before) + 1_000_000


def test_an_extend_without_a_time_leaves_the_leases_as_they_are(desk: Desk) -> None:
    desk.claim(5)
    before = [job["deadline"] for job in desk.jobs("leased")]
    reply = desk.act("extend", seqs=[1, 2])
    assert (reply.status, reply.detail["field"]) == (400, "lease_ms")
    assert [job["deadline"] for job in desk.jobs("leased")] == before


def test_what_cannot_be_buried_is_refused_and_stays_with_its_worker(server: ServerProcess) -> None:
    client = server.client()
    absent = Desk(client, "absent", auto_create=False)
    absent.claim(2)
    assert (absent.act("bury", state="leased", all=True).status, absent.counts) == (404, (8, 2, 1, 0))
    client.put("/v0/topics/full.dead", {"cap_records": 1, "discard": "reject"})
    full = Desk(client, "full")
    full.claim(2)
    assert (full.act("bury", state="leased", all=True).status, full.counts) == (422, (8, 2, 1, 0))


def test_dead_jobs_have_a_reason_and_come_back(desk: Desk) -> None:
    desk.claim(1)
    assert desk.changed("bury", state="leased", all=True, error="poison") == 1
    assert desk.changed("bury", state="ready", match="b") == 5
    assert desk.changed("bury", state="delayed", seqs=[11]) == 1
    dead = desk.jobs("dead")
    assert [(job["src_seq"], job["error"]) for job in dead][:2] == [(1, "poison"), (2, "moved by an operator")]
    assert desk.counts == (4, 0, 0, 7)
    assert desk.changed("redrive", seqs=[dead[0]["$seq"]]) == 1
    assert desk.changed("redrive", match="b", limit=2) == 2
    assert desk.changed("redrive", all=True, dry_run=True) == 4
    assert desk.changed("redrive", all=True) == 4
    assert desk.counts == (11, 0, 0, 0)
    assert {job["data"] for job in desk.claim(20)} == {*range(10), "late"}


def test_only_the_letters_of_the_queue_are_its_dead_jobs(server: ServerProcess) -> None:
    client = server.client()
    one, other = Desk(client, "one", dead_letter="morgue"), Desk(client, "other", dead_letter="morgue")
    assert one.changed("bury", state="ready", match="a") == 5
    assert other.changed("bury", state="ready", match="b") == 5
    assert [job["from"] for job in other.jobs("dead")] == ["other"] * 5
    assert one.changed("delete", state="dead", seqs=other.seqs("dead")) == 0
    assert one.changed("delete", state="dead", all=True) == 5
    assert (one.counts[3], other.counts[3]) == (0, 5)
    assert other.changed("redrive", all=True) == 5


@pytest.mark.parametrize("state", ["ready", "leased", "delayed"])
def test_jobs_are_deleted_by_state(desk: Desk, state: str) -> None:
    desk.claim(4)
    before = {name: desk.seqs(name) for name in ("ready", "leased", "delayed")}
    expected = len(before.pop(state))
    assert desk.changed("delete", state=state, all=True, dry_run=True) == expected
    assert desk.changed("delete", state=state, all=True) == expected
    assert desk.seqs(state) == []
    assert {name: desk.seqs(name) for name in before} == before


def test_a_seq_that_is_not_in_the_state_is_skipped(desk: Desk) -> None:
    desk.claim(1)
    reply = desk.act("release", seqs=[1, 2, 11, 99]).json
    assert (reply["changed"], reply["skipped"]) == (1, 3)


def test_a_limit_leaves_the_rest_for_the_next_call(desk: Desk) -> None:
    first = desk.act("delete", state="ready", all=True, limit=4).json
    assert (first["changed"], first["more"]) == (4, True)
    rest = desk.act("delete", state="ready", all=True).json
    assert (rest["changed"], rest["more"]) == (6, False)


def test_many_jobs_are_changed_in_pieces(server: ServerProcess) -> None:
    client = server.client()
    client.put("/v0/topics/many", {"type": "queue", "dead_letter": "many.dead"})
    client.append("many", *range(3_000))
    desk = Desk(client, "many")
    assert desk.changed("bury", state="ready", all=True, limit=2_500) == 2_500
    assert desk.counts == (510, 0, 1, 2_500)
    assert desk.changed("redrive", all=True, limit=10_000) == 2_500
    assert len(desk.seqs("ready", page_size=1_000)) == desk.counts[0] == 3_010


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"action": "retry"}, "seqs"),
        ({"action": "retry", "all": True, "match": "a"}, "seqs"),
        ({"action": "delete", "all": True}, "state"),
        ({"action": "retry", "state": "dead", "all": True}, "state"),
        ({"action": "extend", "state": "leased", "all": True}, "lease_ms"),
        ({"action": "extend", "seqs": [1, 2]}, "lease_ms"),
        ({"action": "burn", "all": True}, "action"),
        ({"action": "retry", "seqs": []}, "seqs"),
        ({"action": "retry", "all": True, "why": 1}, "why"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_field(desk: Desk, body: Any, field: str) -> None:
    reply = desk.client.post(f"/v0/topics/{desk.name}/jobs", body)
    assert (reply.status, reply.detail["field"]) == (400, field)
    assert desk.counts == (10, 0, 1, 0)


def test_a_queue_without_dead_letters_has_none(server: ServerProcess) -> None:
    client = server.client()
    client.put("/v0/topics/plain", {"type": "queue"})
    client.append("plain", 1)
    listed = client.get("/v0/topics/plain/jobs?state=dead").json
    assert (listed["jobs"], listed["dead_letter"]) == ([], None)
    buried = client.post("/v0/topics/plain/jobs", {"action": "bury", "state": "ready", "all": True})
    assert (buried.status, buried.detail["field"]) == (400, "action")
    assert client.get("/v0/topics/plain/jobs").detail["field"] == "state"
    client.append("log", 1)
    assert client.get("/v0/topics/log/jobs?state=ready").code == "not_a_queue"
    assert client.get("/v0/topics/nothing/jobs?state=ready").code == "topic_not_found"


def test_scopes_and_prefixes_hold_for_the_dead_letters_as_well(tmp_path: Path) -> None:
    with serving(tmp_path, api_keys="root,boss:read+admin:team.,reader:read") as server:
        desk = Desk(server.client("root"), "team.q", dead_letter="morgue")
        desk.changed("bury", state="ready", seqs=[1])
        desk.client = server.client("boss")
        assert desk.client.get("/v0/topics/team.q/jobs?state=ready").status == 200
        assert desk.client.get("/v0/topics/team.q/jobs?state=dead").code == "forbidden"
        assert desk.act("bury", state="ready", all=True).code == "forbidden"
        assert desk.act("redrive", all=True).code == "forbidden"
        assert desk.changed("delete", state="ready", seqs=[2]) == 1
        desk.client = server.client("reader")
        assert desk.act("delete", state="ready", all=True).code == "forbidden"


def test_what_an_operator_did_survives_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        desk = Desk(server.client(), "q", leases_durable=True)
        desk.claim(3)
        desk.changed("release", seqs=[2])
        desk.changed("retry", all=True)
        desk.changed("bury", state="ready", seqs=[4])
        desk.changed("delete", state="ready", seqs=[5])
        before = desk.counts
        server.kill()
    with serving(tmp_path) as server:
        desk.client = server.client()
        assert desk.counts == before == (7, 2, 0, 1)
        assert desk.jobs("dead")[0]["src_seq"] == 4
