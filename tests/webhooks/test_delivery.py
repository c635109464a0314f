"""Deliveries by hand: order, retries by a clock that stands still, dead letters, pauses, restarts, what is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.webhooks.conftest import URL, Hand, seq_of
from topics.client import Client, InvalidRequest, Outgoing, TopicNotFound, WebhookNotFound
from topics.client.errors import Throttled
from topics.engine.webhooks import delivery, dispatcher
from topics.engine.webhooks.messages import JITTER_SHARE
from topics.model import errors
from topics.model.errors import StorageError
from topics.model.settings import Settings
from topics.testing import Engine, engine

SECOND_MS = 1_000


def append(client: Client, topic: str, *payloads: Any, tag: str | None = None) -> None:
    client.append_many(topic, [Outgoing(payload, tag=tag) for payload in payloads])


def body_of(message: Any) -> Any:
    return json.loads(message.body)


def test_records_are_sent_one_after_the_other(client: Client, hand: Hand) -> None:
    client.append("t", "before")
    made = client.put_webhook("w", "t", URL)
    assert made.created
    assert (made.cursor, made.order, made.paused) == (1, "topic", False)
    append(client, "t", {"n": 1}, {"n": 2}, {"n": 3})
    hand.rig.advance(0)
    assert hand.ids == [2]
    message = hand.answer()
    assert body_of(message)["data"] == {"n": 1}
    headers = dict(message.headers)
    assert (headers["content-type"], headers["topics-topic"], headers["topics-webhook"]) == (
        "application/json",
        "t",
        "w",
    )
    assert headers["webhook-timestamp"] == str(hand.rig.clock.now_ms() // 1000)
    assert (message.target.host, message.target.path, message.timeout_ms) == ("hooks.example.org", "/in?a=1", 10_000)
    assert hand.ids == [3]
    hand.answer_all()
    shown = client.webhook("w")
    assert (shown.cursor, shown.lag, shown.delivered_total, shown.in_flight) == (4, 0, 3, 0)
    assert [(note.seq, note.status, note.attempt) for note in shown.attempts] == [(2, 200, 1), (3, 200, 1), (4, 200, 1)]


@pytest.mark.parametrize(
    ("start", "seqs"), [("head", [4]), ("earliest", [1, 2, 3, 4]), (2, [3, 4]), (99, [4]), (0, [1, 2, 3, 4])]
)
def test_where_a_new_one_starts(client: Client, hand: Hand, start: Any, seqs: list[int]) -> None:
    append(client, "t", 1, 2, 3)
    client.put_webhook("w", "t", URL, start=start)
    client.append("t", 4)
    hand.rig.advance(0)
    hand.answer_all()
    assert [seq_of(message) for message in hand.sent] == seqs
    assert client.webhook("w").lost_total == 0


def test_retries_come_twice_as_late_each_time_and_keep_the_order(client: Client, hand: Hand) -> None:
    client.put_webhook("w", "t", URL, backoff_ms=SECOND_MS, backoff_ms_max=5 * SECOND_MS)
    append(client, "t", 1, 2)
    hand.rig.advance(0)
    for wait_ms in (1_000, 2_000, 4_000, 5_000, 5_000):
        before_ms = hand.rig.clock.now_ms()
        hand.answer(500)
        shown = client.webhook("w")
        assert shown.next_retry_ts is not None
        assert wait_ms <= shown.next_retry_ts - before_ms <= wait_ms * (1 + JITTER_SHARE)
        assert (shown.retrying, shown.attempts[-1].next_ts) == (1, shown.next_retry_ts)
        hand.rig.advance(shown.next_retry_ts - before_ms - 1)
        assert hand.ids == []
        hand.rig.advance(20)
        assert hand.ids == [1]
    shown = client.webhook("w")
    assert (shown.failed_total, shown.failures_in_a_row, shown.lag) == (5, 5, 2)
    hand.answer(204)
    assert hand.ids == [2]
    assert client.webhook("w").failures_in_a_row == 0
    hand.answer(0, error="no answer within 10 s")
    assert client.webhook("w").attempts[-1].error == "no answer within 10 s"


@pytest.mark.parametrize("status", [429, 503])
def test_a_receiver_may_ask_for_a_pause_of_everything(client: Client, hand: Hand, status: int) -> None:
    client.put_webhook("w", "t", URL, concurrency=2, order="none", backoff_ms=100)
    append(client, "t", 1, 2, 3)
    hand.rig.advance(0)
    hand.answer(status, retry_after_ms=60_000)
    hand.answer(200)
    hand.rig.advance(59_000)
    assert hand.ids == [], "not even the third record, which has not failed"
    hand.rig.advance(1_100)
    assert sorted(hand.ids) == [1, 3]


def test_410_pauses_at_once_and_a_resumption_tries_again(client: Client, hand: Hand) -> None:
    client.put_webhook("w", "t", URL)
    client.append("t", 1)
    hand.rig.advance(0)
    hand.answer(410)
    shown = client.webhook("w")
    assert shown.paused
    assert "410 Gone" in (shown.paused_reason or "")
    assert shown.paused_ts == hand.rig.clock.now_ms()
    hand.rig.advance(86_400_000)
    assert hand.ids == []
    hand.rig.restart()
    hand.start()
    assert hand.ids == [], "a pause outlives the process"
    assert not client.resume_webhook("w").paused
    hand.rig.advance(0)
    assert hand.ids == [1]
    hand.answer_all()
    assert client.webhook("w").lag == 0


def test_what_is_given_up_becomes_a_dead_letter_and_the_next_one_is_sent(client: Client, hand: Hand) -> None:
    client.put_webhook("w", "t", URL, max_attempts=2, backoff_ms=100, dead_letter="dead")
    client.append("t", {"order": 7}, tag="a", node="n", meta={"k": 1})
    client.append("t", 2)
    hand.rig.advance(0)
    hand.answer(500)
    hand.rig.advance(200)
    hand.answer(0, error="no answer")
    assert hand.ids == [2]
    (letter,) = client.diff("dead", include_tags=True).records
    assert (letter.data, letter.tag, letter.node) == ({"order": 7}, "a", "n")
    assert letter.meta == {
        "k": 1,
        "$webhook": "w",
        "$webhook_topic": "t",
        "$webhook_seq": 1,
        "$webhook_attempts": 2,
        "$webhook_error": "no answer",
    }
    shown = client.webhook("w")
    assert (shown.dead_total, shown.failed_total, shown.cursor, shown.retrying) == (1, 2, 1, 0)


def test_without_dead_letters_the_record_that_fails_too_often_pauses(client: Client, hand: Hand) -> None:
    client.put_webhook("w", "t", URL, max_attempts=1)
    append(client, "t", 1, 2)
    hand.rig.advance(0)
    hand.answer(500)
    shown = client.webhook("w")
    assert shown.paused_reason == "record 1 failed 1 times, and there is no dead_letter: status 500"
    assert (shown.cursor, shown.lag) == (0, 2), "nothing is lost"
    client.put_webhook("w", "t", URL, max_attempts=1, dead_letter="dead")
    hand.rig.advance(0)
    assert hand.ids == [1], "a PUT resumes as well"


def test_records_given_up_in_a_row_pause(client: Client, hand: Hand) -> None:
    client.put_webhook("w", "t", URL, max_attempts=1, dead_letter="dead", pause_after=2)
    append(client, "t", 1, 2, 3, 4, 5)
    hand.rig.advance(0)
    hand.answer(500)
    hand.answer(200)
    hand.answer(500)
    assert not client.webhook("w").paused, "a success was in between"
    hand.answer(500)
    assert "2 records in a row were given up" in (client.webhook("w").paused_reason or "")
    assert len(client.diff("dead").records) == 3
    assert client.webhook("w").cursor == 4


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "fsync"])
def test_dead_letters_of_every_class(client: Client, hand: Hand, durability: Any) -> None:
    client.create("dead", durability=durability)
    client.put_webhook("w", "t", URL, max_attempts=1, dead_letter="dead")
    client.append("t", 1)
    hand.rig.advance(0)
    hand.answer(500)
    for _ in range(20):
        hand.rig.advance(50)
    assert [record.data for record in client.diff("dead").records] == [1]
    assert client.webhook("w").cursor == 1


def test_a_cap_holds_for_dead_letters_as_soon_as_they_are_there(client: Client, hand: Hand) -> None:
    client.create("dead", cap_records=1)
    client.put_webhook("w", "t", URL, max_attempts=1, dead_letter="dead", pause_after=0)
    append(client, "t", 1, 2)
    hand.rig.advance(0)
    hand.answer(500)
    hand.answer(500)
    assert [record.data for record in client.diff("dead").records] == [2]


def test_a_full_dead_letter_topic_keeps_the_record(client: Client, hand: Hand) -> None:
    client.create("dead", cap_records=1, discard="reject")
    client.append("dead", "occupied")
    client.put_webhook("w", "t", URL, max_attempts=1, dead_letter="dead", pause_after=0)
    append(client, "t", 1, 2)
    hand.rig.advance(0)
    hand.answer(500)
    assert "topic_full" in (client.webhook("w").last_error or "")
    assert (client.webhook("w").cursor, hand.ids) == (0, [])
    client.delete("dead", before_seq=2)
    hand.rig.advance(1_100)
    assert [record.data for record in client.diff("dead").records] == [1]
    assert hand.ids == [2]
    hand.answer()
    assert client.webhook("w").last_error is None


def test_tags_keep_their_order_while_others_pass(client: Client, hand: Hand) -> None:
    client.put_webhook("w", "t", URL, concurrency=3, backoff_ms=1_000)
    for tag in "aabbab":
        client.append("t", tag, tag=tag)
    client.append("t", "none")
    client.append("t", "none")
    hand.rig.advance(0)
    assert hand.ids == [1, 3, 7]
    hand.answer(500)  # the first of a
    assert hand.ids == [3, 7, 8]
    hand.answer()
    hand.answer()
    assert hand.ids == [8, 4]
    hand.answer_all()
    assert [seq_of(message) for message in hand.sent] == [1, 3, 7, 8, 4, 6], "2 and 5 wait for 1"
    shown = client.webhook("w")
    assert (shown.cursor, shown.lag) == (0, 3)
    hand.rig.advance(2_000)
    hand.answer_all()
    assert [seq_of(message) for message in hand.sent][6:] == [1, 2, 5]
    assert client.webhook("w").cursor == 8


def test_a_restart_repeats_only_what_was_not_done(client: Client, hand: Hand) -> None:
    client.put_webhook("w", "t", URL, concurrency=4, order="none", backoff_ms=10_000)
    append(client, "t", *range(8))
    hand.rig.advance(0)
    hand.answer(500)
    for _ in range(4):
        hand.answer(index=1)
    assert hand.ids == [2, 7, 8]
    for _ in range(2):
        hand.rig.restart()
        hand.start()
        assert hand.ids == [2, 7, 8], "1 rests, the others were delivered"
    hand.answer_all()
    hand.rig.advance(13_000)
    assert hand.ids == [1]
    assert client.webhook("w").retrying == 1
    hand.answer()
    shown = client.webhook("w")
    assert (shown.cursor, shown.delivered_total, shown.attempts[-1].attempt) == (8, 8, 2)


def test_only_records_with_the_tag(client: Client, hand: Hand) -> None:
    client.put_webhook("w", "t", URL, tag="a")
    for number, tag in enumerate("bacab"):
        client.append("t", number, tag=tag)
    hand.rig.advance(0)
    hand.answer_all()
    assert [body_of(message)["data"] for message in hand.sent] == [1, 3]
    assert body_of(hand.sent[0])["$tag"] == "a"
    assert client.webhook("w").cursor == 5


def test_a_long_way_without_a_match_is_noted(client: Client, hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "SKIPPED_MAX", 10)
    client.put_webhook("w", "t", URL, tag="a")
    append(client, "t", *range(20), tag="b")
    hand.rig.advance(0)
    assert hand.rig._server.store.webhooks._table.by_name["w"].cursor == 20


@pytest.mark.parametrize("form", ["record", "data", "cloudevents"])
def test_what_the_body_is(client: Client, hand: Hand, form: Any) -> None:
    client.put_webhook("w", "t", URL, format=form, headers={"Authorization": "Bearer x"})
    client.append("t", {"a": [1]}, meta={"m": 1}, tag="x")
    hand.rig.advance(0)
    message = hand.answer()
    body, headers = body_of(message), dict(message.headers)
    assert headers["Authorization"] == "Bearer x"
    if form == "record":
        assert body == {"$seq": 1, "$ts": hand.rig.clock.now_ms(), "$tag": "x", "data": {"a": [1]}, "meta": {"m": 1}}
    elif form == "data":
        assert body == {"a": [1]}
    else:
        assert headers["content-type"] == "application/cloudevents+json"
        assert (body["specversion"], body["type"], body["data"]) == ("1.0", "topics.record", {"a": [1]})
        assert body["id"] == headers["webhook-id"]


def test_records_that_retention_takes_before_are_counted_as_lost(client: Client, hand: Hand) -> None:
    client.create("t", cap_records=2, replace=True)
    client.put_webhook("w", "t", URL)
    client.append("t", 1)
    hand.rig.advance(0)
    append(client, "t", 2, 3, 4, 5)
    hand.answer(500)
    hand.rig.advance(10_000)
    hand.answer_all()
    assert [seq_of(message) for message in hand.sent] == [1, 4, 5]
    shown = client.webhook("w")
    assert (shown.lost_total, shown.cursor, shown.lag) == (3, 5, 0)


def test_deleted_records_are_passed_over_and_not_lost(client: Client, hand: Hand) -> None:
    client.put_webhook("w", "t", URL)
    append(client, "t", 1, 2, 3)
    hand.rig.advance(0)
    client.delete("t", before_seq=3)
    hand.answer()
    hand.answer()
    assert [seq_of(message) for message in hand.sent] == [1, 3]
    assert client.webhook("w").lost_total == 0


def test_a_topic_that_is_created_again_is_delivered_from_its_start(client: Client, hand: Hand) -> None:
    client.put_webhook("w", "t", URL)
    append(client, "t", "old", "old")
    hand.rig.advance(0)
    client.drop("t")
    hand.rig.advance(0)
    hand.answer()
    hand.rig.advance(1_100)
    assert "topic_not_found" in (client.webhook("w").last_error or "")
    client.create("t")
    client.append("t", "new")
    hand.rig.advance(1_100)
    assert hand.ids == [1]
    assert body_of(hand.answer())["data"] == "new"
    shown = client.webhook("w")
    assert (shown.cursor, shown.lag, shown.last_error) == (1, 0, None)


def test_a_change_waits_for_what_is_under_way(client: Client, hand: Hand) -> None:
    client.put_webhook("w", "t", URL)
    append(client, "t", 1, 2)
    hand.rig.advance(0)
    client.put_webhook("w", "t", "https://other.example.org/")
    hand.rig.advance(0)
    assert hand.ids == [1], "the same record is not under way twice"
    hand.answer()
    assert hand.answer().target.host == "other.example.org"
    assert [seq_of(message) for message in hand.sent] == [1, 2]


def test_what_is_under_way_does_not_move_the_position_in_another_topic(client: Client, hand: Hand) -> None:
    client.put_webhook("w", "t", URL)
    append(client, "t", 1, 2, 3)
    append(client, "other", "a", "b")
    hand.rig.advance(0)
    hand.answer()
    client.put_webhook("w", "other", URL, start=1)
    hand.answer()
    shown = client.webhook("w")
    assert (shown.topic, shown.cursor, shown.lag) == ("other", 1, 1)
    assert body_of(hand.answer())["data"] == "b"
    assert client.webhook("w").cursor == 2


def test_a_replay_is_whole_whatever_was_under_way_before(client: Client, hand: Hand) -> None:
    client.create("other")
    append(client, "t", 1, 2, 3)
    client.put_webhook("w", "t", URL, start="earliest")
    hand.rig.advance(0)
    hand.answer()
    assert hand.ids == [2]
    client.put_webhook("w", "other", URL)
    client.put_webhook("w", "t", URL, start="earliest")
    hand.answer()
    assert (hand.ids, client.webhook("w").cursor) == ([1], 0)
    hand.answer_all()
    assert [seq_of(message) for message in hand.sent] == [1, 2, 1, 2, 3]


@pytest.mark.parametrize("status", [410, 500])
def test_a_change_is_not_paused_for_what_was_sent_before_it(client: Client, hand: Hand, status: int) -> None:
    client.put_webhook("w", "t", URL, max_attempts=1)
    client.append("t", 1)
    hand.rig.advance(0)
    client.put_webhook("w", "t", "https://other.example.org/", max_attempts=1)
    hand.answer(status)
    assert client.webhook("w").paused_reason is None
    hand.rig.advance(10_000)
    assert hand.answer().target.host == "other.example.org"
    assert client.webhook("w").cursor == 1


def test_a_record_that_cannot_be_read_is_read_again(
    client: Client, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, broken = delivery.Delivery._read, True

    def reading(self: Any, topic: Any, seq: int) -> Any:
        if broken:
            raise StorageError("seqs 1 to 2 cannot be read")
        return (yield from read(self, topic, seq))

    monkeypatch.setattr(delivery.Delivery, "_read", reading)
    client.put_webhook("w", "t", URL)
    append(client, "t", 1, 2)
    for _ in range(3):
        hand.rig.advance(1_100)
        assert "cannot be read" in (client.webhook("w").last_error or "")
    assert hand.ids == []
    broken = False
    hand.rig.advance(1_100)
    assert hand.ids == [1]
    hand.answer_all()
    shown = client.webhook("w")
    assert (shown.cursor, shown.last_error) == (2, None)


def test_a_put_without_a_change_changes_nothing(client: Client, hand: Hand) -> None:
    made = client.put_webhook("w", "t", URL, headers={"x": "1"}, start="earliest")
    client.append("t", 1)
    hand.rig.advance(0)
    hand.answer_all()
    again = client.put_webhook("w", "t", URL, headers={"x": "1"}, start="earliest")
    assert (again.created, again.cursor, again.secret) == (False, 1, None), "a deployment may repeat it"
    assert made.secret is not None
    assert again.secrets == made.secrets
    client.create("other")
    client.append("other", "a")
    moved = client.put_webhook("w", "other", URL, start="earliest")
    assert moved.cursor == 0, "another topic, another position"


def test_a_paused_one_sends_nothing_and_continues_where_it_was(client: Client, hand: Hand) -> None:
    assert client.put_webhook("w", "t", URL, paused=True).paused_reason == "by request"
    client.append("t", 1)
    hand.rig.advance(1_000)
    assert (hand.ids, client.webhook("w").lag) == ([], 1)
    client.put_webhook("w", "t", URL)
    hand.rig.advance(0)
    assert hand.ids == [1]
    client.put_webhook("w", "t", URL, paused=True)
    hand.answer()
    client.append("t", 2)
    hand.rig.advance(0)
    assert (hand.ids, client.webhook("w").cursor) == ([], 1)
    client.resume_webhook("w")
    hand.rig.advance(0)
    assert hand.ids == [2]


def test_a_dropped_one_is_gone(client: Client, hand: Hand) -> None:
    client.put_webhook("w", "t", URL)
    append(client, "t", 1, 2)
    hand.rig.advance(0)
    assert client.drop_webhook("w")
    assert not client.drop_webhook("w")
    with pytest.raises(WebhookNotFound):
        client.webhook("w")
    hand.answer()
    hand.rig.restart()
    hand.start()
    assert (hand.ids, list(client.webhooks())) == ([], [])


def test_webhooks_are_listed_by_name_topic_and_prefix(client: Client, hand: Hand) -> None:
    client.create("other")
    for name, topic in (("b", "t"), ("a", "t"), ("c", "other")):
        client.put_webhook(name, topic, URL)
    assert [each.webhook for each in client.webhooks(page_size=1)] == ["a", "b", "c"]
    assert [each.webhook for each in client.webhooks("other")] == ["c"]
    assert [each.webhook for each in client.webhooks(prefix="b")] == ["b"]


def test_all_webhooks_together_have_a_limit_of_what_is_under_way(
    client: Client, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "SENDING_MAX", 2)
    for name in "abc":
        client.put_webhook(name, "t", URL, concurrency=2, order="none")
    append(client, "t", 1, 2)
    hand.rig.advance(0)
    counts: list[int] = []
    while hand.waiting:
        counts.append(len(hand.waiting))
        hand.answer()
    assert (max(counts), len(hand.sent)) == (2, 6)
    assert all(each.lag == 0 for each in client.webhooks())


def test_receivers_that_never_answer_leave_room_for_others(
    client: Client, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "SENDING_MAX", 24)
    client.create("quick")
    for name in "ab":
        client.put_webhook(name, "t", URL, concurrency=24, order="none")
    append(client, "t", *range(50))
    hand.rig.advance(0)
    stuck = len(hand.waiting)
    assert stuck == 12, "the other half is for webhooks with few under way"
    for name in "cd":
        client.put_webhook(name, "quick", URL)
    append(client, "quick", *range(5))
    hand.rig.advance(0)
    while len(hand.waiting) > stuck:
        hand.answer(index=stuck)
    assert [client.webhook(name).lag for name in "cd"] == [0, 0]
    hand.answer_all()
    assert [client.webhook(name).lag for name in "abcd"] == [0, 0, 0, 0]


def test_room_that_was_taken_while_a_record_was_read_is_waited_for(
    client: Client, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "SENDING_MAX", 1)
    found, read = hand.rig._server.store.dispatcher, delivery.Delivery._read
    outcomes: list[Any] = []

    def reading(self: Any, topic: Any, seq: int) -> Any:
        if not hand.sent:
            found.send_sample(self.webhook, "test-0", outcomes.append)
        return (yield from read(self, topic, seq))

    monkeypatch.setattr(delivery.Delivery, "_read", reading)
    client.put_webhook("w", "t", URL)
    client.append("t", 1)
    hand.rig.advance(0)
    assert [dict(message.headers)["webhook-id"] for message in hand.sent] == ["test-0"]
    with pytest.raises(errors.Throttled, match="1 messages of webhooks are under way"):
        found.send_sample(found.table.by_name["w"], "test-1", outcomes.append)
    hand.answer()
    assert (len(outcomes), hand.ids) == (1, [1])


def test_the_window_has_a_limit(client: Client, hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "WINDOW_MAX", 10)
    client.put_webhook("w", "t", URL, concurrency=2, backoff_ms=3_600_000)
    client.append("t", 0, tag="stuck")
    append(client, "t", *range(100), tag="also")
    hand.rig.advance(0)
    hand.answer(500)
    hand.answer(500)
    hand.rig.advance(10_000)
    assert hand.ids == []
    found = hand.rig._server.store.dispatcher.delivery(hand.rig._server.store.webhooks._table.by_name["w"])
    assert found is not None
    assert len(found._window) == 10


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"url": "ftp://a.org"}, "url must start with"),
        ({"url": "https:///a"}, "name a host"),
        ({"url": "https://u:p@a.org"}, "must not have a user"),
        ({"url": "https://a.org/#x"}, "fragment"),
        ({"url": "https://a.org/ü"}, "printable ASCII"),
        ({"url": "https://a.org/a b"}, "printable ASCII"),
        ({"url": "https://a.org:0/"}, "port 0"),
        ({"url": "https://a.org:99999/"}, "url is not valid"),
        ({"url": "https://a_b!.org/"}, "neither a name nor an address"),
        ({"url": "https://a.org/" + "a" * 2_050}, "at most 2048"),
        ({"url": "http://127.0.0.1/"}, "is not a public one"),
        ({"url": "http://[::ffff:10.0.0.1]:80/"}, "is not a public one"),
        ({"timeout_ms": 60_001}, "timeout_ms must be 100 to 60000"),
        ({"concurrency": 65}, "concurrency must be 1 to 64"),
        ({"concurrency": 2, "order": "topic"}, "concurrency must be 1"),
        ({"max_attempts": 0}, "max_attempts must be 1 to 100"),
        ({"backoff_ms": 9_000, "backoff_ms_max": 8_000}, "at least backoff_ms"),
        ({"dead_letter": "t"}, "must not be the topic itself"),
        ({"tag": ""}, "tag must be"),
        ({"headers": {"Host": "a"}}, "only the server sets"),
        ({"headers": {"webhook-id": "a"}}, "only the server sets"),
        ({"headers": {"a b": "a"}}, "not the name of a header"),
        ({"headers": {"a": "b\r\nx: y"}}, "printable ASCII"),
        ({"headers": {"a": "x" * 5_000}}, "at most 4096"),
        ({"headers": {f"h{number}": "" for number in range(17)}}, "at most 16"),
        ({"headers": {"a": "1", "A": "2"}}, "twice"),
        ({"secret": "abc"}, "secret must be whsec_"),
        ({"secret": "whsec_" + "a" * 16}, "secret must be whsec_"),
        ({"secret": "whsec_ä" + "a" * 40}, "secret must be whsec_"),
    ],
)
def test_what_cannot_work_is_refused(client: Client, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        client.put_webhook("w", **{"topic": "t", "url": URL, **fields})


def test_the_topic_must_be_a_log_that_exists(client: Client) -> None:
    with pytest.raises(TopicNotFound):
        client.put_webhook("w", "absent", URL)
    client.create("q", type="queue")
    with pytest.raises(InvalidRequest, match="is a queue"):
        client.put_webhook("w", "q", URL)
    with pytest.raises(InvalidRequest, match="webhook must be"):
        client.put_webhook("no name", "t", URL)
    client.put_webhook("w", "t", URL)
    with pytest.raises(InvalidRequest, match="delivers no webhooks"):
        client.test_webhook("w")


def test_there_is_a_limit() -> None:
    with engine(settings=Settings(max_webhooks=1)) as rig:
        client = rig.client()
        client.create("t")
        client.put_webhook("a", "t", URL)
        client.put_webhook("a", "t", URL, paused=True)
        with pytest.raises(Throttled, match="1 webhooks"):
            client.put_webhook("b", "t", URL)


def test_secrets_and_headers_are_not_shown_again(client: Client) -> None:
    made = client.put_webhook("w", "t", URL, headers={"Authorization": "Bearer hidden"})
    assert made.secret is not None
    assert made.headers == {"Authorization": "…"}
    shown = client.webhook("w")
    assert shown.secret is None
    assert [each.hint for each in shown.secrets] == [f"whsec_…{made.secret[-4:]}"]
    mine = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    assert client.put_webhook("own", "t", URL, secret=mine).secret is None, "whoever brings it has it"


def test_a_checkpoint_while_something_changes_is_whole(rig: Engine, client: Client, hand: Hand) -> None:
    client.put_webhook("w", "t", URL, concurrency=2, order="none")
    append(client, "t", 1, 2, 3)
    rig.advance(0)
    store = rig._server.store
    steps = store._checkpointer.steps()
    for _ in range(3):
        next(steps, None)
    hand.answer(index=1)
    assert store.checkpoint()
    rig.restart()
    hand.start()
    assert sorted(hand.ids) == [1, 3]
