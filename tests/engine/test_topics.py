"""Topics: creating, configuring, looking, listing, dropping."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.engine.conftest import OpenRig
from tests.engine.rig import Rig
from topics.model.errors import (
    InvalidRequest,
    TopicExistsIncompatible,
    TopicNotEmpty,
    TopicNotFound,
)
from topics.model.requests.config import ConfigRequest, TopicConfig

DEFAULTS = TopicConfig()


# --- configuring ---


def test_an_empty_wish_makes_a_topic_of_defaults(rig: Rig) -> None:
    change = rig.configure("a")
    assert change.created
    assert change.result == DEFAULTS
    assert rig.look("a").config == DEFAULTS


def test_the_same_configuration_again_creates_nothing(rig: Rig) -> None:
    rig.configure("a", ttl_ms=5)
    written_to = rig.store.wal.written_to
    again = rig.configure("a", ttl_ms=5)
    assert not again.created
    assert rig.store.wal.written_to == written_to, "a no-op is not journaled"


def test_an_update_replaces_the_configuration_so_that_omitted_fields_go_back_to_defaults(rig: Rig) -> None:
    rig.configure("a", ttl_ms=5, cap_records=7, priority=3, durable=True)
    change = rig.configure("a", cap_bytes=9)
    assert not change.created
    assert rig.look("a").config == TopicConfig(cap_bytes=9)


def test_an_update_may_leave_out_the_type(rig: Rig) -> None:
    rig.configure("q", type="queue", lease_ms=500)
    rig.configure("q", lease_ms=600)
    assert rig.look("q").config.type == "queue"
    assert rig.look("q").type == "queue"


@pytest.mark.parametrize(("first", "second"), [("log", "queue"), ("queue", "log")])
def test_a_type_never_changes(rig: Rig, first: str, second: str) -> None:
    rig.configure("a", type=first)
    with pytest.raises(TopicExistsIncompatible):
        rig.configure("a", type=second)
    assert rig.look("a").type == first


def test_a_refused_change_of_type_changes_nothing_else(rig: Rig) -> None:
    rig.configure("a", ttl_ms=5)
    with pytest.raises(TopicExistsIncompatible):
        rig.configure("a", type="queue", ttl_ms=9)
    assert rig.look("a").config.ttl_ms == 5


def test_a_configuration_survives_restart_and_crash_in_every_class(rig: Rig) -> None:
    for durability in ("ephemeral", "memory", "disk", "fsync"):
        rig.configure(durability, durability=durability, ttl_ms=1234, priority=-5, dead_letter="elsewhere")
    before = [state.config for state in rig.engine.list().topics]
    rig.crash()
    assert [state.config for state in rig.engine.list().topics] == before
    rig.reopen()
    assert [state.config for state in rig.engine.list().topics] == before


def test_a_tightened_cap_drops_what_is_over_it_and_says_so(rig: Rig) -> None:
    rig.append("a", *range(10))
    rig.configure("a", cap_records=3)
    assert rig.seqs("a") == [8, 9, 10]
    tombstone = rig.diff("a").tombstone
    assert tombstone is not None
    assert (tombstone.gap_from, tombstone.gap_to, tombstone.reason) == (1, 7, "cap")


def test_a_tightened_ttl_expires_what_is_there(rig: Rig) -> None:
    rig.append("a", 1)
    rig.clock.advance(100)
    rig.append("a", 2)
    rig.configure("a", ttl_ms=50)
    assert rig.seqs("a") == [2]


@pytest.mark.parametrize(
    "name", ["", "-a", ".a", "_a", ":a", "a/b", "a b", "a" * 256, "ä", "a\n", "a\0", "../x", "a%2Fb"]
)
def test_a_bad_name_is_refused_by_every_verb(rig: Rig, name: str) -> None:
    for verb in (
        lambda: rig.configure(name),
        lambda: rig.append(name, 1),
        lambda: rig.diff(name),
        lambda: rig.look(name),
        lambda: rig.delete(name, before_seq=1),
        lambda: rig.drop(name),
    ):
        with pytest.raises(InvalidRequest):
            verb()


@pytest.mark.parametrize("name", ["a", "0", "a" * 255, "render-queue:tenantA", "A.b_c:d-e"])
def test_every_allowed_character_makes_a_name(rig: Rig, name: str) -> None:
    rig.append(name, 1)
    assert rig.look(name).topic == name


def test_names_are_case_sensitive(rig: Rig) -> None:
    rig.append("Jobs", 1)
    with pytest.raises(TopicNotFound):
        rig.look("jobs")


def test_names_never_become_file_names(rig: Rig) -> None:
    rig.append("a.very:special-name", 1)
    rig.checkpoint()
    assert not [path for path in rig.path.rglob("*") if "special" in path.name]


# --- state ---


def test_a_fresh_topic_is_empty_and_was_never_written_nor_read(rig: Rig) -> None:
    rig.configure("a")
    state = rig.look("a")
    assert (state.head_seq, state.earliest_seq, state.next_seq) == (0, 1, 1)
    assert (state.count, state.bytes) == (0, 0)
    assert (state.last_write_ts, state.last_read_ts) == (None, None)


def test_a_state_tells_heads_counts_and_times(rig: Rig) -> None:
    rig.append("a", 1, 2, 3)
    rig.clock.advance(5)
    rig.diff("a")
    state = rig.look("a")
    assert (state.head_seq, state.earliest_seq, state.next_seq, state.count) == (3, 1, 4, 3)
    assert state.bytes == sum(len(b'{"$seq":1,"$ts":1700000000000,"data":1},') for _ in range(3))
    assert (state.last_write_ts, state.last_read_ts) == (rig.clock.now_ms() - 5, rig.clock.now_ms())


def test_looking_touches_unless_told_not_to(rig: Rig) -> None:
    rig.configure("a")
    rig.engine.look("a", touch=False)
    assert rig.look("a").last_read_ts is None
    rig.engine.look("a")
    assert rig.look("a").last_read_ts == rig.clock.now_ms()


def test_listing_touches_only_when_told_to(rig: Rig) -> None:
    rig.configure("a")
    rig.engine.list()
    assert rig.look("a").last_read_ts is None
    rig.engine.list(touch=True)
    assert rig.look("a").last_read_ts == rig.clock.now_ms()


def test_looking_never_creates(rig: Rig) -> None:
    with pytest.raises(TopicNotFound) as caught:
        rig.look("a")
    assert caught.value.detail == {"topic": "a"}
    assert rig.engine.list().topics == []


def test_a_manual_priority_overrides_the_automatic_one(rig: Rig) -> None:
    rig.configure("a", priority=7)
    rig.engine.look("a")
    assert rig.look("a").effective_priority == 7


def test_an_automatic_priority_fades_with_the_time_since_the_last_read(rig: Rig) -> None:
    rig.configure("a")
    never = rig.look("a").effective_priority
    rig.engine.look("a")
    fresh = rig.look("a").effective_priority
    rig.clock.advance(600_000)
    assert fresh > rig.look("a").effective_priority >= never


def test_without_automatic_priority_reads_change_nothing(rig: Rig) -> None:
    rig.configure("a", auto_priority=False)
    before = rig.look("a").effective_priority
    rig.engine.look("a")
    assert rig.look("a").effective_priority == before


def test_an_empty_topic_starts_after_its_head(rig: Rig) -> None:
    rig.append("a", 1, 2)
    rig.delete("a", before_seq=3)
    state = rig.look("a")
    assert (state.head_seq, state.earliest_seq, state.count, state.bytes) == (2, 3, 0, 0)


# --- list ---


def names(rig: Rig, **query: Any) -> list[str]:
    return [state.topic for state in rig.engine.list(**query).topics]


def test_a_list_is_sorted_and_filtered_by_prefix(rig: Rig) -> None:
    for name in ("b:2", "a", "b:1", "c", "b"):
        rig.configure(name)
    assert names(rig) == ["a", "b", "b:1", "b:2", "c"]
    assert names(rig, prefix="b:") == ["b:1", "b:2"]
    assert names(rig, prefix="zz") == []


def test_pages_cover_everything_once_and_the_last_has_no_cursor(rig: Rig) -> None:
    wanted = [f"t{number:02}" for number in range(10)]
    for name in wanted:
        rig.configure(name)
    for page_size in (1, 3, 5, 10, 11):
        found: list[str] = []
        cursor: str | None = None
        while True:
            page = rig.engine.list("t", cursor, page_size)
            found += [state.topic for state in page.topics]
            cursor = page.next_cursor
            if cursor is None:
                break
            assert len(page.topics) == page_size
        assert found == wanted


def test_a_page_that_ends_with_the_last_match_has_no_cursor(rig: Rig) -> None:
    for name in ("a1", "a2", "b"):
        rig.configure(name)
    assert rig.engine.list("a", None, 2).next_cursor is None


@pytest.mark.parametrize(("asked", "given"), [(0, 1), (-5, 1), (1000, 1000), (5000, 1000)])
def test_a_page_size_is_clamped(open_rig: OpenRig, asked: int, given: int) -> None:
    rig = open_rig()
    for number in range(1001):
        rig.engine.configure(f"t{number:04}", ConfigRequest())
    rig.store.commit_log.flush()
    while len(rig.store.state.names) < 1001:
        rig.store.settle()
    assert len(rig.engine.list("", None, asked).topics) == given


def test_a_hundred_topics_are_a_page(rig: Rig) -> None:
    for number in range(101):
        rig.append(f"t{number:03}", 1)
    page = rig.engine.list()
    assert len(page.topics) == 100
    assert page.next_cursor is not None


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "!!",
        "AAAA",
        "é",
        "a",
        *(
            base64.urlsafe_b64encode(text).decode()
            for text in (b"", b"{", b"null", b"[]", b'"after"', b"{}", b'{"after":null}', b'{"after":5}', b"\xff\xfe")
        ),
    ],
)
def test_a_corrupt_cursor_is_refused(rig: Rig, cursor: str) -> None:
    rig.configure("a")
    with pytest.raises(InvalidRequest) as caught:
        rig.engine.list("", cursor)
    assert caught.value.detail["field"] == "cursor"


def test_a_cursor_stays_good_when_its_topic_is_dropped(rig: Rig) -> None:
    for name in ("a", "b", "c"):
        rig.configure(name)
    cursor = rig.engine.list("", None, 2).next_cursor
    rig.drop("b")
    assert names(rig, cursor=cursor) == ["c"]


def test_a_list_shows_what_a_look_shows(rig: Rig) -> None:
    rig.append("a", 1, 2, config={"durable": True, "priority": 5})
    rig.append("b", *range(10), config={"cap_records": 4})
    rig.append("c", 1, config={"ttl_ms": 10})
    rig.clock.advance(20)
    assert rig.engine.list().topics == [rig.look(name) for name in ("a", "b", "c")]


# --- drop ---


def test_dropping_what_is_not_there_says_so(rig: Rig) -> None:
    assert rig.drop("a") is False


def test_a_dropped_topic_is_gone_with_everything_in_it(rig: Rig) -> None:
    rig.append("a", 1, 2, idempotency_key="k")
    assert rig.drop("a") is True
    assert rig.drop("a") is False
    with pytest.raises(TopicNotFound):
        rig.diff("a")
    assert (rig.store.state.count, rig.store.state.bytes) == (0, 0)
    again = rig.append("a", 3, idempotency_key="k")
    assert (again.created, again.deduped, again.first_seq) == (True, False, 1)
    assert [record["data"] for record in rig.records("a")] == [3]


def test_a_recreated_topic_has_a_new_epoch_and_starts_at_one(rig: Rig) -> None:
    rig.append("a", 1, 2)
    before = rig.look("a").epoch
    assert rig.diff("a").epoch == before
    rig.drop("a")
    assert rig.append("a", 3).first_seq == 1
    assert rig.look("a").epoch != before
    assert rig.diff("a").epoch == rig.look("a").epoch


def test_topics_of_one_millisecond_have_epochs_of_their_own(rig: Rig) -> None:
    names = [f"t{number}" for number in range(200)]
    for name in names:
        rig.configure(name)
    assert len({rig.look(name).epoch for name in names}) == len(names)


def test_an_epoch_survives_restart_and_crash(rig: Rig) -> None:
    rig.append("a", 1)
    epoch = rig.look("a").epoch
    rig.crash()
    assert rig.look("a").epoch == epoch
    rig.reopen()
    assert rig.look("a").epoch == epoch


def test_a_drop_survives_a_crash_also_of_what_was_sealed(rig: Rig) -> None:
    rig.append("a", *range(5))
    rig.checkpoint()
    rig.drop("a")
    rig.crash()
    with pytest.raises(TopicNotFound):
        rig.look("a")
    rig.checkpoint()
    rig.reopen()
    assert rig.engine.list().topics == []


def test_only_an_empty_topic_is_dropped_if_that_was_asked(rig: Rig) -> None:
    rig.append("a", 1, 2)
    with pytest.raises(TopicNotEmpty):
        rig.drop("a", if_empty=True)
    rig.delete("a", before_seq=3)
    assert rig.drop("a", if_empty=True) is True
    assert rig.drop("a", if_empty=True) is False


def test_expired_records_do_not_keep_a_topic_from_being_empty(rig: Rig) -> None:
    rig.append("a", 1, config={"ttl_ms": 10})
    rig.clock.advance(11)
    assert rig.drop("a", if_empty=True) is True
