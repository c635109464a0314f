"""The ledger of transactions: the committed version of each app, its token, and its stages.

    App "nightly"   version 7, fence 3
      └─ Stage (8, "task-1")   parts 0 … 4
           ├─ shelf for topic "orders"   ─▶ hidden topic 91: blocks, packs and snapshots as for any topic
           └─ shelf for topic "audit"    ─▶ hidden topic 92

Hidden topics appear in no list and no quota, and cannot be read. A commit moves blocks, or a few records that the op
carries, to their topics, all in the fold of one op.

A stage that is dropped has no part in the state any more, but its hidden topics are removed later, a few at a time:
there may be a hundred thousand. No op says so. A snapshot may still have them, without a stage that refers to them:
a start, or a standby that takes over, then removes them with an op. It has no effect where they are gone already.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import msgspec

from topics.engine.core.feature import Feature
from topics.engine.log.topic import STAGING, Topic
from topics.engine.transactions.ops import Move, TxnAborted, TxnCommitted, TxnFenced, TxnForgotten, TxnStaged
from topics.model.requests.config import TopicConfig
from topics.model.requests.transactions import OWNERS_MAX, UNKNOWN_STAGES

if TYPE_CHECKING:
    from topics.engine.core.state import State

# The first byte of an app in a snapshot; MessagePack never starts with it, so no topic does.
APP_CHUNK = b"\xc1"
HIDDEN_CONFIG = TopicConfig()
# In an op and in a snapshot this id stands for no app: its token is the minimum for all apps.
FENCE_FLOOR_ID = 0


def hidden_name(topic_id: int) -> str:
    return f"{STAGING}{topic_id}"


def hidden_topic(topic_id: int) -> Topic:
    return Topic(topic_id, hidden_name(topic_id), 0, HIDDEN_CONFIG, 0)


class PartSize(NamedTuple):
    records: int
    bytes: int


class Stage:
    """What one writer has staged so far; parts are numbered from 0 without gaps."""

    __slots__ = ("bytes", "created_ms", "name", "owner", "parts", "records", "shelves", "touched_ms", "version")

    def __init__(self, version: int, name: str, created_ms: int, owner: str) -> None:
        self.version = version
        self.name = name
        self.created_ms = self.touched_ms = created_ms
        # who had the token of the app; "" if there was none, or it has no owner
        self.owner = owner
        self.parts: list[PartSize] = []
        self.records = 0
        self.bytes = 0
        # hidden topics by the names of the topics that the records go to
        self.shelves: dict[str, Topic] = {}

    def add(self, part: PartSize) -> None:
        self.parts.append(part)
        self.records += part.records
        self.bytes += part.bytes


class CommittedRecords(NamedTuple):
    """The range of a commit's records in one topic."""

    topic: str
    first_seq: int
    last_seq: int
    records: int


class App:
    """Changed only by the folds below."""

    __slots__ = (
        "bytes",
        "captured",
        "fence",
        "id",
        "name",
        "named",
        "outcome",
        "owners",
        "stages",
        "touched_ms",
        "version",
        "version_fence",
    )

    def __init__(self, app_id: int, name: str) -> None:
        self.id = app_id
        self.name = name
        self.version: int | None = None
        self.outcome: list[CommittedRecords] = []
        # the stages that the highest version's commit named
        self.named = UNKNOWN_STAGES
        # the newest token; tokens with owners, oldest first; the version's token
        self.fence = 0
        self.owners: list[tuple[int, str]] = []
        self.version_fence = 0
        self.touched_ms = 0
        self.stages: dict[tuple[int, str], Stage] = {}
        self.bytes = 0
        # number of the checkpoint that has captured this app
        self.captured = 0

    @property
    def owner(self) -> str:
        """Who has the newest token."""
        return self.owners[-1][1] if self.owners and self.owners[-1][0] == self.fence else ""


class Ledger(Feature):
    """All apps; folds the ops of transactions."""

    chunk: ClassVar[bytes | None] = APP_CHUNK

    def __init__(self, state: State) -> None:
        self._state = state
        self.by_name: dict[str, App] = {}
        self.by_id: dict[int, App] = {}
        # totals over all apps
        self.stages = 0
        self.bytes = 0
        # Tokens up to here may have been issued by the original of a copy, to any app.
        self.fence_floor = 0
        # Stages that were dropped, until their hidden topics are removed.
        self.abandoned: deque[Stage] = deque()
        # Apps of a snapshot, until all topics are restored.
        self._images: list[AppImage] = []

    # --- folds ---

    def staged(self, op: TxnStaged) -> None:
        # Whatever is dropped meanwhile: a replay keeps no more of it than one commit has left.
        self.remove_abandoned(2 * len(op.shelves))
        app = self._app(op.topic_id, op.app)
        if not op.part and (op.version, op.stage) in app.stages:
            # It had expired, and was started again before it was removed.
            self._drop(app, [(op.version, op.stage)])
        stage = app.stages.get((op.version, op.stage))
        if stage is None:
            stage = app.stages[op.version, op.stage] = Stage(op.version, op.stage, op.ts, app.owner)
            self.stages += 1
        app.touched_ms = stage.touched_ms = max(stage.touched_ms, op.ts)
        part = PartSize(
            sum(appended.batch.count for _, appended in op.shelves),
            sum(appended.batch.size for _, appended in op.shelves),
        )
        for name, appended in op.shelves:
            shelf = stage.shelves.get(name)
            if shelf is None:
                shelf = stage.shelves[name] = hidden_topic(appended.topic_id)
                self._state.adopt(shelf)
            self._state.touch(shelf)
            self._state.append(appended)
        stage.add(part)
        app.bytes += part.bytes
        self.bytes += part.bytes

    def fenced(self, op: TxnFenced) -> None:
        if op.topic_id == FENCE_FLOOR_ID:
            self.fence_floor = max(self.fence_floor, op.fence)
            return
        app = self._app(op.topic_id, op.app)
        app.fence = max(app.fence, op.fence)
        if op.owner:
            app.owners = [*app.owners[1 - OWNERS_MAX :], (op.fence, op.owner)]
        app.touched_ms = op.ts

    def committed(self, op: TxnCommitted) -> None:
        app = self._app(op.topic_id, op.app)
        for move in op.moves:
            self._move(move)
        app.version, app.named = op.version, op.named
        # Only the newest token can commit, and no token is taken meanwhile.
        app.version_fence = app.fence
        app.touched_ms = op.ts
        app.outcome = [
            CommittedRecords(move.name, move.first_seq, move.first_seq + move.records - 1, move.records)
            for move in op.moves
        ]
        self._drop(app, [key for key in app.stages if key[0] <= op.version])

    def _move(self, move: Move) -> None:
        state = self._state
        dest, hidden = state.by_id.get(move.dest_id), state.by_id.get(move.hidden_id)
        if dest is None:
            # Only a log with gaps names a topic that does not exist.
            return
        state.touch(dest)
        if move.appended is not None:
            state.append(move.appended)
        elif hidden is None or hidden.count != move.records:
            state.lose_up_to(dest, move.first_seq + move.records - 1)
        else:
            state.touch(hidden)
            state.splice(hidden, dest, move.first_seq, move.floor)

    def aborted(self, op: TxnAborted) -> None:
        app = self.by_id.get(op.topic_id)
        if app is not None:
            self._touch(app)
            self._drop(app, [key for key in op.stages if key in app.stages])

    def forgotten(self, op: TxnForgotten) -> None:
        app = self.by_id.get(op.topic_id)
        if app is not None:
            self._touch(app)
            self._drop(app, list(app.stages))
            del self.by_id[app.id], self.by_name[app.name]

    def _app(self, app_id: int, name: str) -> App:
        app = self.by_id.get(app_id)
        if app is None:
            app = self._add(App(app_id, name))
            if self._state.behind_mark:
                app.captured = self._state.checkpoint
        self._touch(app)
        return app

    def _add(self, app: App) -> App:
        self.by_id[app.id] = self.by_name[app.name] = app
        self._state.next_id = max(self._state.next_id, app.id + 1)
        return app

    def _touch(self, app: App) -> None:
        if self._state.behind_mark and app.captured != self._state.checkpoint:
            self._state.keep_chunk(self._captured(app))

    def _drop(self, app: App, keys: Iterable[tuple[int, str]]) -> None:
        for key in keys:
            stage = app.stages.pop(key)
            self.stages -= 1
            app.bytes -= stage.bytes
            self.bytes -= stage.bytes
            self.abandoned.append(stage)

    def remove_abandoned(self, topics_max: float = math.inf) -> None:
        """Remove some hidden topics of dropped stages; not an op, see above."""
        state, abandoned = self._state, self.abandoned
        while abandoned and topics_max > 0:
            shelves = abandoned[0].shelves
            if not shelves:
                abandoned.popleft()
                continue
            _, shelf = shelves.popitem()
            topics_max -= 1
            if state.by_id.get(shelf.id) is not shelf:
                # Another server still had it without its stage, and removed it; or its id was given out again.
                continue
            if state.awaits_capture(shelf):
                # The op that dropped it may come after the position of the running checkpoint.
                state.capture(shelf)
            state.remove(shelf)

    def closing(self) -> None:
        self.remove_abandoned()

    # --- snapshots ---

    def capture(self) -> Iterator[bytes]:
        for app in list(self.by_id.values()):
            if app.captured != self._state.checkpoint:
                yield self._captured(app)
        if self.fence_floor:
            yield encode_fence_floor(self.fence_floor)

    def _captured(self, app: App) -> bytes:
        app.captured = self._state.checkpoint
        return encode_app(app)

    def restore(self, chunk: bytes) -> None:
        self._images.append(_decoder.decode(chunk[len(APP_CHUNK) :]))

    def restored(self) -> Iterator[None]:
        images, self._images = self._images, []
        for image in images:
            self._restore(image)
            yield

    def _restore(self, image: AppImage) -> None:
        """Restore an app from a snapshot and connect its stages to their topics."""
        if image.id == FENCE_FLOOR_ID:
            self.fence_floor = image.fence
            return
        app = self._add(App(image.id, image.name))
        app.version, app.fence, app.touched_ms = image.version, image.fence, image.touched_ms
        app.owners, app.version_fence, app.named = image.owners, image.version_fence, image.named
        app.outcome = [CommittedRecords(*landed) for landed in image.outcome]
        for kept in image.stages:
            created_ms = kept.created_ms or kept.touched_ms
            stage = app.stages[kept.version, kept.name] = Stage(kept.version, kept.name, created_ms, kept.owner)
            stage.touched_ms = kept.touched_ms
            for part in kept.parts:
                stage.add(PartSize(*part))
            self.stages += 1
            app.bytes += stage.bytes
            self.bytes += stage.bytes
            for name, topic_id in kept.shelves:
                stage.shelves[name] = self._state.by_id[topic_id]

    def hidden_in_use(self) -> set[int]:
        """The hidden topics of a stage."""
        return {
            shelf.id for app in self.by_id.values() for stage in app.stages.values() for shelf in stage.shelves.values()
        }


class StageImage(msgspec.Struct, array_like=True):
    version: int
    name: str
    touched_ms: int
    parts: list[tuple[int, int]]
    shelves: list[tuple[str, int]]
    # absent in older snapshots
    created_ms: int = 0
    owner: str = ""


class AppImage(msgspec.Struct, array_like=True):
    id: int
    name: str
    version: int | None
    fence: int
    touched_ms: int
    outcome: list[tuple[str, int, int, int]]
    stages: list[StageImage]
    owners: list[tuple[int, str]]
    version_fence: int
    named: bytes = UNKNOWN_STAGES


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AppImage)


def encode_app(app: App) -> bytes:
    stages = [
        StageImage(
            stage.version,
            stage.name,
            stage.touched_ms,
            list(stage.parts),
            [(name, shelf.id) for name, shelf in stage.shelves.items()],
            stage.created_ms,
            stage.owner,
        )
        for stage in app.stages.values()
    ]
    outcome: list[tuple[str, int, int, int]] = list(app.outcome)
    image = AppImage(
        app.id,
        app.name,
        app.version,
        app.fence,
        app.touched_ms,
        outcome,
        stages,
        app.owners,
        app.version_fence,
        app.named,
    )
    return APP_CHUNK + _encoder.encode(image)


def encode_fence_floor(floor: int) -> bytes:
    return APP_CHUNK + _encoder.encode(AppImage(FENCE_FLOOR_ID, "", None, floor, 0, [], [], [], 0))
