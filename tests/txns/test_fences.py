"""Tokens with an owner: asked for again and again by the same one, lost for good to the next one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving import serving
from tests.txns.rig import TxnRig
from topics.client import Client
from topics.client.errors import Fenced as FencedAnswer
from topics.engine.core.pending import Busy
from topics.engine.transactions.ledger import Ledger
from topics.model.errors import Fenced, InvalidRequest
from topics.model.requests.transactions import OWNERS_MAX


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TxnRig]:
    with TxnRig(tmp_path / "data") as rig:
        yield rig


def test_an_owner_is_told_its_token_as_often_as_it_asks(rig: TxnRig) -> None:
    token = rig.take_fence("app", "run-1")
    assert [rig.take_fence("app", "run-1") for _ in range(3)] == [token] * 3
    rig.commit("app", 1, fence=token)
    assert rig.take_fence("app", "run-1") == token


def test_the_next_owner_shuts_the_one_before_it_out_for_good(rig: TxnRig) -> None:
    old, new = rig.take_fence("app", "run-1"), rig.take_fence("app", "run-2")
    assert new > old
    with pytest.raises(Fenced, match='"run-1" has token 1 of "app", but the newest is 2'):
        rig.take_fence("app", "run-1")
    with pytest.raises(Fenced):
        rig.commit("app", 1, fence=old)
    rig.commit("app", 1, fence=new)


def test_a_token_without_an_owner_displaces_one_that_has_one(rig: TxnRig) -> None:
    rig.take_fence("app", "run-1")
    assert rig.take_fence("app") == 2
    with pytest.raises(Fenced):
        rig.take_fence("app", "run-1")


def test_owners_of_different_apps_have_nothing_to_do_with_each_other(rig: TxnRig) -> None:
    assert (rig.take_fence("a", "run"), rig.take_fence("b", "run"), rig.take_fence("b", "other")) == (1, 1, 2)
    assert rig.take_fence("a", "run") == 1


@pytest.mark.parametrize("checkpointed", [False, True])
def test_owners_are_known_after_a_crash(rig: TxnRig, checkpointed: bool) -> None:
    rig.take_fence("app", "run-1")
    token = rig.take_fence("app", "run-2")
    if checkpointed:
        rig.checkpoint()
        rig.reopen()
    else:
        rig.crash()
    assert rig.take_fence("app", "run-2") == token
    with pytest.raises(Fenced):
        rig.take_fence("app", "run-1")


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_stage_tells_its_age_and_the_owner_of_its_token(rig: TxnRig, checkpointed: bool) -> None:
    began_ms = rig.clock.now_ms()
    rig.stage("plain", 1, "s", 1, topic="t")
    token = rig.take_fence("app", "run-1")
    rig.stage("app", 1, "s", 1, topic="t", fence=token)
    rig.clock.advance(5_000)
    rig.stage("app", 1, "s", 2, part=1, topic="t", fence=token)
    later = rig.take_fence("app", "run-2")
    rig.stage("app", 1, "other", 1, topic="t", fence=later)
    if checkpointed:
        rig.checkpoint()
        rig.reopen()
    else:
        rig.crash()
    look = rig.store.transactions.look
    assert [(stage.name, stage.owner, created_ms) for stage, created_ms, _ in look("app")[1]] == [
        ("s", "run-1", began_ms),
        ("other", "run-2", began_ms + 5_000),
    ]
    assert [(stage.owner, created_ms) for stage, created_ms, _ in look("plain")[1]] == [("", began_ms)]


def test_only_the_last_owners_are_remembered(rig: TxnRig) -> None:
    for number in range(OWNERS_MAX + 1):
        rig.take_fence("app", f"run-{number}")
    for number in range(1, OWNERS_MAX):
        with pytest.raises(Fenced):
            rig.take_fence("app", f"run-{number}")
    assert len(rig.store.state.feature(Ledger).by_name["app"].owners) == OWNERS_MAX
    assert rig.take_fence("app", "run-0") == OWNERS_MAX + 2


def test_an_owner_that_asks_again_need_not_wait_for_parts_on_their_way(rig: TxnRig) -> None:
    token = rig.take_fence("app", "run-1")
    transactions = rig.store.transactions
    request = rig.request("a", 1, topic="t", fence=token)
    part = transactions.stage("app", 1, request)
    again = transactions.take_fence("app", "run-1")
    assert again.done
    assert again.result == token
    with pytest.raises(Busy):
        transactions.take_fence("app", "run-2")
    rig.finish(part)


def test_two_that_ask_at_once_get_one_after_the_other(rig: TxnRig) -> None:
    first = rig.store.transactions.take_fence("app", "run-1")
    with pytest.raises(Busy):
        rig.store.transactions.take_fence("app", "run-1")
    rig.finish(first)
    assert rig.take_fence("app", "run-1") == first.result


@pytest.mark.parametrize("owner", ["", "x" * 129])
def test_an_owner_has_a_name_of_bounded_length(rig: TxnRig, owner: str) -> None:
    with pytest.raises(InvalidRequest, match="owner must have 1 to 128 characters"):
        rig.take_fence("app", owner)


def test_who_stages_a_version_that_is_done_is_told_with_which_token(rig: TxnRig) -> None:
    rig.commit("plain", 3)
    assert rig.stage("plain", 3, "a", 1, topic="t")[2:] == (True, 0)
    for version, owner in ((1, "run-1"), (2, "run-2")):
        rig.commit("app", version, fence=rig.take_fence("app", owner))
    rig.take_fence("app", "run-3")
    rig.checkpoint()
    rig.reopen()
    assert rig.stage("app", 2, "a", 1, topic="t")[2:] == (True, 2)
    assert rig.stage("app", 1, "a", 1, topic="t")[2:] == (True, 0)


def test_owners_over_http(tmp_path: Path) -> None:
    with serving(tmp_path) as server, Client(f"http://127.0.0.1:{server.port}") as client:
        token = client.take_fence("spark:q:t", owner="run-1")
        assert client.take_fence("spark:q:t", owner="run-1") == token
        client.commit_txn("spark:q:t", 7, [], fence=token)
        again = client.stage("spark:q:t", 7, "s", 0, [1], topic="t", fence=token)
        assert (again.done, again.fence) == (True, token)
        assert client.take_fence("spark:q:t", owner="run-2") == token + 1
        with pytest.raises(FencedAnswer):
            client.take_fence("spark:q:t", owner="run-1")
