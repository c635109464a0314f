"""Records that change their topic: dead letters get stamps, and lose them when they move back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw

from topics.engine.core.appended import Appended
from topics.engine.core.ops import Deleted
from topics.engine.log.block import Block
from topics.engine.log.deletion import Run
from topics.engine.log.topic import Topic
from topics.engine.queues.due import Job
from topics.engine.queues.ops import Buried, Moved
from topics.model.requests.batch import JOB_PRIORITY_MAX, render
from topics.model.requests.config import TopicConfig
from topics.model.requests.nesting import decode_deep
from topics.model.requests.records import UNSET, AppendRequest, RecordRequest

if TYPE_CHECKING:
    from topics.engine.core.engine import TopicRoom

FROM, DELIVERIES, SRC_SEQ, ERROR, PRIORITY = (
    "$dead_letter_from",
    "$dead_letter_deliveries",
    "$dead_letter_src_seq",
    "$dead_letter_error",
    "$dead_letter_priority",
)
STAMPS = (FROM, DELIVERIES, SRC_SEQ, ERROR, PRIORITY)

PRIORITIES = frozenset(b"%d" % priority for priority in range(JOB_PRIORITY_MAX + 1))

_encode = msgspec.json.Encoder().encode
_decode_meta = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode


def record_of(block: Block, number: int) -> RecordRequest:
    """A stored record as an append would send it. The first `,"data":` is its own, see `diff.render_view`."""
    body = block.body
    assert body is not None
    record = bytes(body.record(number))
    meta_bytes = body.metas[number] if body.metas is not None else 0
    data_at = record.index(b',"data":') + 8
    meta = Raw(record[-1 - meta_bytes : -1]) if meta_bytes else UNSET
    data = Raw(record[data_at : len(record) - 1 - (meta_bytes + 8 if meta_bytes else 0)])
    tag = body.tag_at(number)
    node = body.nodes[number] if body.nodes is not None else 0
    return RecordRequest(data, None if tag is None else tag.decode(), body.node_names[node - 1] if node else None, meta)


def stamp(record: RecordRequest, queue: str, job: Job, error: str) -> None:
    """Record in `meta` where the record comes from and why. These stamps replace earlier ones."""
    stamps: dict[str, object] = {FROM: queue, DELIVERIES: job.deliveries, SRC_SEQ: job.seq}
    if error:
        stamps[ERROR] = error
    if job.priority:
        stamps[PRIORITY] = job.priority
    try:
        record.meta = Raw(_encode({**_unstamped(record), **stamps}))
    except (msgspec.DecodeError, RecursionError):
        # Nested too deeply to be decoded, as version 0.1 allowed: the stamps are inserted before the existing fields.
        assert record.meta is not UNSET
        record.meta = Raw(b"%b,%b" % (_encode(stamps)[:-1], bytes(record.meta).lstrip()[1:]))


def unstamp(record: RecordRequest) -> None:
    """Only after `home_of` has found the stamps. The job has the priority again that it had in its queue."""
    stamped = stamps_of(record).get("job_priority")
    if isinstance(stamped, Raw) and bytes(stamped) in PRIORITIES:
        record.job_priority = int(bytes(stamped))
    left = _unstamped(record)
    record.meta = Raw(_encode(left)) if left else UNSET


def home_of(record: RecordRequest) -> str | None:
    """The queue that the record came from, if it has a readable stamp."""
    if record.meta is UNSET:
        return None
    try:
        value = decode_deep(_decode_meta, bytes(record.meta)).get(FROM)
        return None if value is None else _decode_text(value)
    except (msgspec.DecodeError, RecursionError):
        return None


def stamps_of(record: RecordRequest) -> dict[str, object]:
    """What the stamps of a dead letter say: its queue, its seq there, how often it was delivered, and why it failed."""
    if record.meta is UNSET:
        return {}
    try:
        meta = decode_deep(_decode_meta, bytes(record.meta))
    except (msgspec.DecodeError, RecursionError):
        return {}
    names = {FROM: "from", SRC_SEQ: "src_seq", DELIVERIES: "deliveries", ERROR: "error", PRIORITY: "job_priority"}
    return {name: meta[stamped] for stamped, name in names.items() if stamped in meta}


def _unstamped(record: RecordRequest) -> dict[str, Raw]:
    if record.meta is UNSET:
        return {}
    return {key: value for key, value in decode_deep(_decode_meta, bytes(record.meta)).items() if key not in STAMPS}


def move(
    source: Topic, runs: list[Run], records: list[RecordRequest], room: TopicRoom, ts: int, *, dead: bool
) -> Moved:
    batch = render(AppendRequest(records), room.first_seq, ts, bare=False)
    return Moved(source.id, dead, ts, runs, Appended(room.topic_id, room.floor, b"", batch))


def encode_move(moved: Moved, source: Topic, destination: TopicConfig) -> bytes:
    """The op for the log: all of it, or only the half that survives a restart. Empty: neither half does."""
    leaves, arrives = source.lasts(moved.runs[0].from_seq), destination.durability != "ephemeral"
    if leaves and arrives:
        return moved.encode()
    rest: Appended | Deleted | None = None
    if arrives:
        rest = moved.appended
    elif leaves:
        rest = Deleted(moved.topic_id, moved.ts, moved.runs)
    if moved.dead:
        # The count of dead letters that a queue has written survives all of them.
        return Buried(moved.topic_id, moved.appended.batch.count, rest).encode()
    return rest.encode() if rest is not None else b""
