"""The delivery of one webhook: looks for records, sends them within its limits, and notes in the log what came of them.

    look ─▶ window ─▶ send ─▶ (the server posts it) ─▶ finished ─▶ outcomes ─▶ note: one op ─▶ look …
              ▲                                           │
              └────────── failed: rests until its time ───┘

Everything that happened since the last op is one op. A record counts as done when that op is in the log: a crash before
it repeats the record, and loses none.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from msgspec import Raw

from topics.engine.core.appended import Appended
from topics.engine.core.pending import PendingChange
from topics.engine.core.waiting.runner import News, Steps, attempt, published
from topics.engine.log.reading import View, read, seqs_after
from topics.engine.log.retention import tombstone
from topics.engine.log.seq_ranges import SeqRange, add_range
from topics.engine.webhooks.messages import RETRY_AFTER_MS_MAX, Outcome, message_of, pause_ms, payload
from topics.engine.webhooks.ops import Retry, WebhookAdvanced, WebhookBuried, WebhookPaused
from topics.engine.webhooks.window import OpenRecord, Window
from topics.model.cloudevents.events_out import StoredRecord, meta_fields
from topics.model.errors import TopicNotFound, TopicsError
from topics.model.requests.batch import render
from topics.model.requests.config import GATED
from topics.model.requests.nesting import decode_deep
from topics.model.requests.records import AppendRequest, RecordRequest

if TYPE_CHECKING:
    from topics.engine.log.topic import Topic
    from topics.engine.webhooks.dispatcher import Dispatcher
    from topics.engine.webhooks.webhook import Webhook

# Records that are looked at and not done: also how many ranges the state of a webhook may have.
WINDOW_MAX: Final = 1_024
# Records that are looked for at once, and what is sent before others have a turn.
LOOK_MAX: Final = 128
SENDS_PER_STEP, BYTES_PER_STEP = 8, 256 * 1024
# A cursor that moves over records of other tags alone is noted this often.
SKIPPED_MAX: Final = 10_000
# When to look again: at a topic that does not exist, after an error; at the wall clock, which may be set.
FAILED_MS, LOOK_AGAIN_MS = 1_000, 10_000
ATTEMPTS_SHOWN: Final = 20
GONE: Final = 410
BUSY: Final = (429, 503)

_WHOLE = View(tags=True)


class LetterRecord(StoredRecord):
    """A record with what its dead letter keeps."""

    node: str | None = msgspec.field(name="$node", default=None)
    tag: str | None = msgspec.field(name="$tag", default=None)


_record = msgspec.json.Decoder(LetterRecord)


class AttemptNote(NamedTuple):
    """An attempt as it is shown: `next_ts` is when the record is tried again, 0 if it is not."""

    seq: int
    attempt: int
    ts: int
    took_ms: int
    status: int
    error: str
    next_ts: int


class History:
    """What is shown of the attempts of a webhook since the start of the process, whether it is paused or not."""

    __slots__ = ("failures", "last_error", "notes")

    def __init__(self) -> None:
        # attempts that failed since the last success
        self.failures = 0
        # what keeps it from going on, other than its receiver
        self.last_error: str | None = None
        self.notes: deque[AttemptNote] = deque(maxlen=ATTEMPTS_SHOWN)


class Outcomes:
    """What has happened and is not in the log."""

    __slots__ = ("delivered", "done", "dying", "failed", "lost", "pause", "retries")

    def __init__(self) -> None:
        self.delivered = self.failed = self.lost = 0
        self.done: list[int] = []
        self.retries: dict[int, Retry] = {}
        # given up, and why; they stay in the window until their dead letters are written
        self.dying: list[tuple[OpenRecord, str]] = []
        self.pause = ""

    def __bool__(self) -> bool:
        return bool(self.done or self.failed or self.lost or self.dying or self.pause)

    def add_back(self, earlier: Outcomes) -> None:
        """The op of earlier ones has failed."""
        self.delivered += earlier.delivered
        self.failed += earlier.failed
        self.lost += earlier.lost
        self.done += earlier.done
        self.retries = earlier.retries | self.retries
        self.dying += earlier.dying
        self.pause = self.pause or earlier.pause


class Delivery:
    """Owner of its own task. It ends when its webhook is changed, paused or dropped, and nothing is under way."""

    wanted = True

    def __init__(self, dispatcher: Dispatcher, webhook: Webhook, history: History) -> None:
        self._history = history
        self._dispatcher = dispatcher
        self._engine = dispatcher.engine
        self.webhook = webhook
        # for the window, even if the webhook is changed meanwhile
        self._config = webhook.config
        self._starts = webhook.starts
        self._window = Window(webhook.config.order)
        self._topic: Topic | None = None
        self._news: News = dispatcher.runner.news(())
        self._looked_to = 0
        self._outcomes = Outcomes()
        self.sending = 0
        self.ending = False
        # nothing is sent before this time: the receiver has asked for a pause
        self._held_ms = 0
        # records that were given up since the last success
        self._given_up = 0

    # --- what is shown ---

    @property
    def position(self) -> int:
        """Everything up to here is done, or is not for this webhook."""
        if self._topic is None or self.ending:
            return self.webhook.cursor
        lowest = self._window.lowest_seq
        return max(self.webhook.cursor, self._looked_to if lowest is None else lowest - 1)

    # --- from outside ---

    def wake(self) -> None:
        self._news.set()

    def end(self) -> None:
        """Send nothing more; what is under way is noted when it is done."""
        self.ending = True
        self._news.set()

    # --- the task ---

    def steps(self) -> Steps[None]:
        yield None
        try:
            while not (self.ending and not self.sending and not self._outcomes):
                try:
                    yield from self._round()
                    self._history.last_error = None
                except TopicsError as error:
                    self._history.last_error = f"{error.code}: {error.message}"
                    if self.ending and not self.sending:
                        # The process ends, or the log cannot be written: what was not noted is delivered again.
                        return
                    yield from self._dispatcher.runner.pause(FAILED_MS)
        finally:
            self._news.close()

    def _round(self) -> Steps[None]:
        """Note, look, send; then wait for news, unless there is more to do."""
        if self._outcomes:
            yield from self._note()
        if self.ending:
            if self.sending:
                yield self._news
            return
        topic = self._source()
        if topic is None:
            raise TopicNotFound(self._config.topic)
        yield from self._look(topic)
        more = yield from self._send(topic)
        if more or self._outcomes:
            yield None
            return
        if not self._window and self._looked_to - self.webhook.cursor > SKIPPED_MAX:
            yield from self._note()
        self._set_alarm()
        yield self._news

    def _set_alarm(self) -> None:
        """Look again when a record may be tried again; other news comes by itself."""
        due_ms = self._window.next_ms
        now_ms = self._dispatcher.now_ms()
        if self._held_ms > now_ms:
            due_ms = max(self._held_ms, due_ms or 0)
        wait_ms = None if due_ms is None else max(0, min(LOOK_AGAIN_MS, due_ms - now_ms))
        self._news.look_again_in(wait_ms)

    def _source(self) -> Topic | None:
        """The topic as it is now. One that was created again is delivered from its beginning."""
        topic = self._engine.state.by_name.get(self._config.topic)
        if topic is self._topic:
            return topic
        if self.sending:
            # Records of the former topic are under way: they are noted before another delivery begins.
            self.ending = True
            return self._topic
        self._topic = topic
        self._window = Window(self._config.order)
        self._news.close()
        self._news = self._dispatcher.runner.news(() if topic is None else (topic,))
        if topic is not None:
            self._looked_to = self.webhook.cursor if topic.epoch == self.webhook.epoch else 0
        return topic

    # --- looking ---

    def _look(self, topic: Topic) -> Steps[None]:
        """Fill the window until enough may be sent. Records that wait for others do not keep those after them."""
        window, config = self._window, self._config
        tag = None if config.tag is None else config.tag.encode()
        while window.ready < config.concurrency and len(window) < WINDOW_MAX and self._looked_to < topic.head_seq:
            yield from attempt(lambda: self._engine.expire(topic))
            gap = tombstone(topic, self._looked_to)
            if gap is not None:
                self._outcomes.lost += gap.missed_estimate
                self._looked_to = max(self._looked_to, gap.gap_to)
                continue
            limit = min(LOOK_MAX, WINDOW_MAX - len(window))
            looking = partial(seqs_after, topic, self._looked_to, tag, limit, self._engine.state.cold.load)
            found, looked_to = yield from attempt(looking)
            same = topic.epoch == self.webhook.epoch
            for seq, found_tag in found:
                if not same or not self.webhook.is_done(seq):
                    retry = self.webhook.retries.get(seq) if same else None
                    earlier = (0, 0) if retry is None else (retry.attempts, retry.next_ms)
                    window.add(seq, found_tag, *earlier)
            self._looked_to = max(self._looked_to + 1, looked_to)
            yield None

    # --- sending ---

    def _send(self, topic: Topic) -> Steps[bool]:
        """Send what may be sent; whether there is more, after others had a turn."""
        sends = size = 0
        while self._may_send():
            now_ms = self._dispatcher.now_ms()
            entry = self._window.take(now_ms)
            if entry is None:
                break
            try:
                body = yield from self._body(topic, entry)
            except TopicsError:
                # It cannot be read now; its lane waits for it, and the error is shown.
                self._window.rest(entry, entry.next_ms)
                raise
            if body is not None and (self.ending or not self._dispatcher.wants_room(self)):
                # It was changed, or others took the room, while the record was read.
                self._window.rest(entry, 0)
                break
            if body is not None:
                message = message_of(self.webhook, f"{topic.epoch}-{entry.seq}", body, now_ms)
                self.sending += 1
                self._dispatcher.send(self, entry, message)
                topic.last_read_ts = now_ms
                sends, size = sends + 1, size + len(body)
            if sends >= SENDS_PER_STEP or size >= BYTES_PER_STEP:
                return True
        return False

    def _may_send(self) -> bool:
        if self.ending or self._outcomes.pause or self.sending >= self._config.concurrency:
            return False
        if self._held_ms > self._dispatcher.now_ms():
            return False
        return bool(self._window) and self._dispatcher.wants_room(self)

    def _body(self, topic: Topic, entry: OpenRecord) -> Steps[bytes | None]:
        record = yield from self._read(topic, entry.seq)
        if record is None:
            self._gone(topic, entry)
            return None
        return payload(self._config.format, topic.name, topic.epoch, record)

    def _read(self, topic: Topic, seq: int) -> Steps[bytes | None]:
        """The record as readers get it; None if it was deleted or has expired."""
        load = self._engine.state.cold.load
        diff = yield from attempt(lambda: read(topic, seq - 1, _WHOLE, 1, 1, load, seq))
        return diff.records() if diff.count else None

    def _gone(self, topic: Topic, entry: OpenRecord) -> None:
        """Before it was delivered; what somebody has deleted is not lost."""
        self._outcomes.lost += entry.seq < topic.evict_floor
        self._outcomes.done.append(entry.seq)
        self._window.done(entry)

    def finished(self, entry: OpenRecord, outcome: Outcome) -> None:
        """What came of a message."""
        self.sending -= 1
        if outcome.cancelled:
            self._window.rest(entry, entry.next_ms)
            self._news.set()
            return
        now_ms = self._dispatcher.now_ms()
        entry.attempts += 1
        next_ms = 0
        if outcome.delivered:
            self._history.failures = self._given_up = 0
            self._outcomes.delivered += 1
            self._outcomes.done.append(entry.seq)
            self._window.done(entry)
        else:
            next_ms = self._failed(entry, outcome, now_ms)
        note = AttemptNote(entry.seq, entry.attempts, now_ms, outcome.took_ms, outcome.status, outcome.error, next_ms)
        self._history.notes.append(note)
        self._news.set()

    def _failed(self, entry: OpenRecord, outcome: Outcome, now_ms: int) -> int:
        """When it is tried again; 0 if it is not."""
        outcomes, config = self._outcomes, self._config
        self._history.failures += 1
        outcomes.failed += 1
        next_ms = now_ms + pause_ms(self.webhook, entry.seq, entry.attempts)
        if outcome.status in BUSY and outcome.retry_after_ms:
            self._held_ms = now_ms + min(outcome.retry_after_ms, RETRY_AFTER_MS_MAX)
            next_ms = max(next_ms, self._held_ms)
        if outcome.status == GONE:
            outcomes.pause = "the receiver answered 410 Gone: it wants no more"
        elif entry.attempts >= config.max_attempts:
            self._given_up += 1
            if config.dead_letter is not None:
                outcomes.dying.append((entry, outcome.reason))
                if config.pause_after and self._given_up >= config.pause_after:
                    outcomes.pause = (
                        f"{self._given_up} records in a row were given up, the last one after {entry.attempts} "
                        f"attempts: {outcome.reason}"
                    )
                return 0
            outcomes.pause = (
                f"record {entry.seq} failed {entry.attempts} times, and there is no dead_letter: {outcome.reason}"
            )
        outcomes.retries[entry.seq] = Retry(entry.seq, next_ms, entry.attempts)
        self._window.rest(entry, next_ms)
        return next_ms

    # --- noting ---

    def _note(self) -> Steps[None]:
        """One op for everything that has happened; dead letters are in the same one."""
        outcomes, self._outcomes = self._outcomes, Outcomes()
        topic = self._topic
        if topic is None:
            return
        try:
            letters = yield from self._letters(topic, outcomes)
            change = yield from attempt(lambda: self._submit(topic, outcomes, letters))
            if change is None:
                return
            yield from published(change)
        except TopicsError:
            self._outcomes.add_back(outcomes)
            raise
        for entry, _ in outcomes.dying:
            self._window.done(entry)
        if outcomes.pause:
            self.ending = True
            change = yield from attempt(lambda: self._submit_pause(outcomes.pause))
            if change is not None:
                yield from published(change)

    def _letters(self, topic: Topic, outcomes: Outcomes) -> Steps[list[RecordRequest]]:
        """The records that are given up, with the reason in their `meta`."""
        letters: list[RecordRequest] = []
        for entry, reason in outcomes.dying:
            record = yield from self._read(topic, entry.seq)
            if record is None:
                outcomes.lost += entry.seq < topic.evict_floor
            else:
                letters.append(_letter(self.webhook.name, topic.name, entry, reason, record))
        return letters

    def _submit(self, topic: Topic, outcomes: Outcomes, letters: list[RecordRequest]) -> PendingChange | None:
        engine, webhook = self._engine, self.webhook
        engine.in_flight.check(("webhook", webhook.name))
        if self._dispatcher.table.by_id.get(webhook.id) is not webhook or webhook.starts != self._starts:
            # It was dropped, or has another position now: in another topic, or again from the start of this one.
            return None
        engine.commit_log.check_writable()
        advanced = self._advanced(topic, outcomes, len(letters))
        if not letters:
            return engine.commit_log.submit(advanced, advanced.encode(), gated=False)
        assert self._config.dead_letter is not None
        size = sum(len(letter.data) for letter in letters)
        room = engine.room_for(self._config.dead_letter, len(letters), size, topic.config.durability)
        now_ms = self._dispatcher.now_ms()
        ts = now_ms if room.topic is None else room.topic.now(now_ms)
        batch = render(AppendRequest(records=letters), room.first_seq, ts, bare=False)
        op = WebhookBuried(advanced, Appended(room.topic_id, room.floor, b"", batch))
        durability = room.config.durability
        if durability == "ephemeral":
            assert op.appended is not None
            engine.commit_log.note_head(op.appended)
        body = op.head() if durability == "ephemeral" else op.encode()
        change = engine.commit_log.submit(op, body, gated=durability in GATED)
        return engine.hold_room(change, self._config.dead_letter, room)

    def _submit_pause(self, reason: str) -> PendingChange | None:
        engine, webhook = self._engine, self.webhook
        engine.in_flight.check(("webhook", webhook.name))
        if self._dispatcher.table.by_id.get(webhook.id) is not webhook or webhook.config is not self._config:
            # It was dropped or changed: the reason is about what it was before.
            return None
        engine.commit_log.check_writable()
        op = WebhookPaused(webhook.id, self._dispatcher.now_ms(), reason)
        return engine.commit_log.submit(op, op.encode(), gated=True)

    def _advanced(self, topic: Topic, outcomes: Outcomes, dead: int) -> WebhookAdvanced:
        dying = {entry.seq for entry, _ in outcomes.dying}
        cursor = self._looked_to
        for seq in self._window.seqs():
            if seq not in dying:
                cursor = seq - 1
                break
        ranges: list[SeqRange] = []
        for seq in (*outcomes.done, *dying):
            if seq > cursor:
                add_range(ranges, SeqRange(seq, seq))
        retries = [retry for seq, retry in outcomes.retries.items() if seq not in dying]
        return WebhookAdvanced(
            self.webhook.id,
            topic.epoch,
            cursor,
            outcomes.delivered,
            outcomes.failed,
            dead,
            outcomes.lost,
            ranges,
            retries,
        )

    # --- the owner of the task ---

    def done(self, _result: None) -> None:
        self._dispatcher.ended(self)

    def failed(self, error: Exception) -> None:
        self._dispatcher.broke(self, error)

    def cancelled(self) -> None:
        self._dispatcher.ended(self)


def _letter(webhook: str, topic: str, entry: OpenRecord, reason: str, record: bytes) -> RecordRequest:
    stored = decode_deep(_record.decode, record)
    stamps = {
        "$webhook": webhook,
        "$webhook_topic": topic,
        "$webhook_seq": entry.seq,
        "$webhook_attempts": entry.attempts,
        "$webhook_error": reason,
    }
    meta = Raw(msgspec.json.encode({**meta_fields(bytes(stored.meta)), **stamps}))
    return RecordRequest(stored.data, stored.tag, stored.node, meta)
