"""Rendering: a batch of requested records becomes the bytes that every reader will receive.

One record, as it is stored in a block, in the log and in every reply:

    {"$seq":7,"$ts":1748450001000,"$node":"eu-1","data":<as sent>,"meta":<as sent>},

The comma belongs to the record, so a run of records is one slice. The tag is not in it: readers get tags only on
request, and deletion looks tags up in a separate column.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Generator, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

import msgspec
from msgspec import UNSET, Raw

from topics.model.errors import BatchTooLarge, InvalidRequest, RecordTooLarge
from topics.model.requests.config import DELAY_MS_MAX, U64_MAX
from topics.model.requests.mistakes import lone_surrogate
from topics.model.requests.records import (
    AppendRequest,
    GroupColumn,
    RecordRequest,
    check_group,
    check_u64,
    group_column,
)

META_KEYS_MAX = 64
KEY_CHARS_MAX = 256
JOB_PRIORITY_MAX = 9
# Metas that are checked at once; a short one takes as long as this many bytes of a long one.
METAS_BYTES_PER_STEP, META_BYTES_EXTRA = 128 * 1024, 256
# Records that are drafted at once; a batch of so few is drafted when it is rendered.
DRAFTED_PER_STEP = 500
# Copying more than this at once holds the owner thread for too long: the thread that writes the log does it.
DEFERRED_BYTES_MIN = 4 * 1024 * 1024
# More than the columns of a batch can count.
ALWAYS_JOINED = 1 << 32
# Bytes joined at once by that thread, which holds the interpreter lock meanwhile.
JOINED_BYTES = 256 * 1024
# One batch is one frame of the log; HTTP bodies are bounded well below.
BATCH_BYTES_MAX = 512 * 1024 * 1024
NO_KEY = bytes(16)
# Not allowed in JSON, not even escaped as itself.
NO_HEAD = b"\0"

_digests = struct.Struct(f"{len(NO_KEY)}s")
# Copied for each key, which takes half as long as creating another.
_unkeyed = hashlib.blake2b(digest_size=len(NO_KEY), person=b"topics-unique")
_encode_string = msgspec.json.Encoder().encode


class _Key:
    """Equal to no other key, so that a dict keeps repeated keys apart."""

    __slots__ = ()


_pairs_decoder = msgspec.json.Decoder(dict[_Key, Raw], dec_hook=lambda _type, _text: _Key())


class BatchLimits(Protocol):
    """The part of the settings that bounds a batch."""

    @property
    def max_batch_records(self) -> int: ...
    @property
    def max_record_bytes(self) -> int: ...
    @property
    def max_meta_bytes(self) -> int: ...
    @property
    def max_tag_bytes(self) -> int: ...
    @property
    def max_node_bytes(self) -> int: ...


class JobColumns(NamedTuple):
    """The job columns of a batch: delays in ms (0: none), digests of unique keys (zeros: none), priorities, and groups.

    Delays count from `from_ms`, which differs from `$ts` after the clock was set back. Without priorities there is
    not a byte for each job.
    """

    delays: array[int]
    unique: bytes
    from_ms: int
    priorities: bytes = b""
    groups: GroupColumn | None = None


class Batch:
    """Rendered records with their columns; a column is None when no record of the batch uses it.

    `ends` and `tag_ends` are running totals within the batch. A stored tag starts with a byte 1, so that an empty tag
    differs from none. `nodes` counts from 1 in `node_names`; 0 is no node. `metas` are lengths; 0 is no meta.

    Until it is written, a large batch has `parts` instead of the blob: `join` makes the blob from them. `size` is the
    blob's in both cases.
    """

    __slots__ = (
        "blob",
        "count",
        "ends",
        "first_seq",
        "jobs",
        "metas",
        "node_names",
        "nodes",
        "parts",
        "size",
        "tag_ends",
        "tag_filter",
        "tag_order",
        "tags",
        "ts",
    )

    def __init__(self, first_seq: int, ts: int, count: int, blob: bytes, ends: array[int]) -> None:
        self.first_seq = first_seq
        self.ts = ts
        self.count = count
        self.blob = blob
        self.size = len(blob)
        self.parts: list[bytes | Raw] | None = None
        self.ends = ends
        self.node_names: list[str] = []
        self.nodes: array[int] | None = None
        self.tags: bytes | None = None
        self.tag_ends: array[int] | None = None
        self.metas: array[int] | None = None
        self.jobs: JobColumns | None = None
        # what a block of its own needs to find tags, if that was made ahead
        self.tag_order: array[int] | None = None
        self.tag_filter: bytes | None = None

    @classmethod
    def rendered(
        cls, first_seq: int, ts: int, parts: list[bytes | Raw], sizes: Sequence[int], joined_bytes_max: int
    ) -> Batch:
        """A batch of records with these sizes; above `joined_bytes_max`, the parts are joined later."""
        ends = array("I", accumulate(sizes))
        if ends[-1] <= joined_bytes_max:
            return cls(first_seq, ts, len(sizes), b"".join(parts), ends)
        batch = cls(first_seq, ts, len(sizes), b"", ends)
        batch.size = ends[-1]
        batch.parts = parts
        return batch

    def tag_column(self) -> tuple[bytes, array[int]] | None:
        return None if self.tags is None or self.tag_ends is None else (self.tags, self.tag_ends)

    def join(self) -> bytes:
        """Make the blob, if that was left for later. The writing thread may do it, while no other uses the blob.

        The long work must not hold the interpreter lock. Joining many bytes objects releases it, joining other buffers
        does not: these are first converted to bytes objects, a few at a time.
        """
        if self.parts is None:
            return self.blob
        if self.size <= JOINED_BYTES:
            self.blob = b"".join(self.parts)
        else:
            joined: list[bytes] = []
            some: list[bytes | Raw] = []
            size = 0
            for part in self.parts:
                some.append(part)
                size += len(part)
                if size >= JOINED_BYTES:
                    joined.append(b"".join(some))
                    some.clear()
                    size = 0
            joined.append(b"".join(some))
            self.blob = b"".join(joined)
        self.parts = None
        return self.blob


def check_batch(request: AppendRequest, limits: BatchLimits, *, metas_checked: bool = False) -> bool:
    """Refuse records that exceed a limit; return whether every record is bare (only data and the batch's node).

    `metas_checked`: by `checking_metas`, which counted their keys.
    """
    records = request.records
    if not records:
        raise InvalidRequest("records must hold at least one record", field="records")
    if len(records) > limits.max_batch_records:
        raise BatchTooLarge(
            f"records holds {len(records)} records; at most {limits.max_batch_records} fit one write, split the batch",
            field="records",
            max=limits.max_batch_records,
        )
    if request.node is not None:
        _check_text(request.node, "node", limits.max_node_bytes)
    if request.idempotency_key is not None:
        _check_key(request.idempotency_key, "idempotency_key")
    bare = True
    total = 0
    data_bytes_max = limits.max_record_bytes
    for index, record in enumerate(records):
        size = len(record.data)
        if (
            record.tag is not None
            or record.node is not None
            or record.meta is not UNSET
            or record.delay_ms
            or record.unique_key is not None
            or record.job_priority
            or record.group is not None
        ):
            bare = False
            size += _check_columns(record, index, limits, metas_checked=metas_checked)
        if size > data_bytes_max:
            raise RecordTooLarge(
                f"records[{index}] has {size} bytes of data and meta; at most {data_bytes_max} are allowed",
                field=f"records[{index}]",
                max=data_bytes_max,
            )
        total += size
    if total > BATCH_BYTES_MAX:
        raise BatchTooLarge(
            f"records hold {total} bytes; at most {BATCH_BYTES_MAX} fit one write, split the batch",
            field="records",
            max=BATCH_BYTES_MAX,
        )
    return bare


def _check_columns(record: RecordRequest, index: int, limits: BatchLimits, *, metas_checked: bool) -> int:
    """Check tag, node and meta of one record; return the size of meta.

    A batch has thousands of records: short ASCII text passes a quick check, and no field name is built unless needed.
    """
    text = record.tag
    if text is not None and not (text.isascii() and len(text) <= limits.max_tag_bytes):
        _check_text(text, f"records[{index}].tag", limits.max_tag_bytes)
    text = record.node
    if text is not None and not (text.isascii() and len(text) <= limits.max_node_bytes):
        _check_text(text, f"records[{index}].node", limits.max_node_bytes)
    text = record.unique_key
    if text is not None and not (text.isascii() and 0 < len(text) <= KEY_CHARS_MAX):
        _check_key(text, f"records[{index}].unique_key")
    if not 0 <= record.job_priority <= JOB_PRIORITY_MAX:
        field = f"records[{index}].job_priority"
        raise InvalidRequest(f"{field} must be 0 to {JOB_PRIORITY_MAX}, not {record.job_priority}", field=field)
    if record.group is not None:
        check_group(record.group, f"records[{index}].group")
    if record.delay_ms > U64_MAX:
        check_u64(record.delay_ms, f"records[{index}].delay_ms")
    if record.meta is UNSET:
        return 0
    return len(record.meta) if metas_checked else _check_meta(record, record.meta, index, limits)


def checking_metas(records: Sequence[RecordRequest], limits: BatchLimits) -> Generator[None, None, None]:
    """Refuse metas that exceed a limit; pauses after each millisecond or so of work."""
    unpaused = 0
    for index, record in enumerate(records):
        meta = record.meta
        if meta is not UNSET:
            unpaused += len(meta) + META_BYTES_EXTRA
            _check_meta(record, meta, index, limits)
            if unpaused >= METAS_BYTES_PER_STEP:
                unpaused = 0
                yield


def _check_meta(record: RecordRequest, meta: Raw, index: int, limits: BatchLimits) -> int:
    text = bytes(meta)
    if text == b"null":
        record.meta = UNSET
        return 0
    size = len(text)
    if size > limits.max_meta_bytes:
        field = f"records[{index}].meta"
        raise InvalidRequest(f"{field} has {size} bytes; at most {limits.max_meta_bytes} are allowed", field=field)
    # It was decoded as JSON: a bracket means an object, and few colons mean few keys, whatever they are.
    if text[:1] == b"{" and text.count(b":") <= META_KEYS_MAX:
        return size
    field = f"records[{index}].meta"
    try:
        # A repeated key counts each time: readers get all of them.
        keys = len(_pairs_decoder.decode(text))
    except msgspec.ValidationError:
        raise InvalidRequest(f"{field} must be an object", field=field) from None
    if keys > META_KEYS_MAX:
        raise InvalidRequest(f"{field} has {keys} keys; at most {META_KEYS_MAX} are allowed", field=field)
    return size


def _check_text(text: str, field: str, bytes_max: int) -> None:
    if utf8_bytes(text, field) > bytes_max:
        raise InvalidRequest(f"{field} is longer than {bytes_max} bytes", field=field)


def _check_key(key: str, field: str) -> None:
    if not (utf8_bytes(key, field) and len(key) <= KEY_CHARS_MAX):
        raise InvalidRequest(f"{field} must have 1 to {KEY_CHARS_MAX} characters", field=field)


def utf8_bytes(text: str, field: str) -> int:
    """The size of the text in UTF-8. A request cannot hold a lone surrogate, a Python string can."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise lone_surrogate(field, field) from None


def render(
    request: AppendRequest,
    first_seq: int,
    ts: int,
    *,
    bare: bool,
    joined_bytes_max: int = ALWAYS_JOINED,
    unique: bytes | None = None,
    draft: Draft | None = None,
) -> Batch:
    """A batch of these records. One above `joined_bytes_max` must be joined, or written, before its blob is used.

    `unique` is the column of their unique keys, `draft` the draft of just these records, if they are known already.
    """
    records = request.records
    if not bare:
        if len(records) == 1:
            batch = _render_one(records[0], request.node, first_seq, ts)
        else:
            head = b'{"$seq":%%d,"$ts":%d' % ts
            heads = [head % seq for seq in range(first_seq, first_seq + len(records))]
            batch = (draft or _drafted(records, request.node)).batch(heads, first_seq, ts, joined_bytes_max)
        if draft is None or not draft.for_logs:
            batch.jobs = _job_columns(records, unique, ts)
        return batch
    node = b"" if request.node is None else b',"$node":' + _encode_string(request.node)
    if len(records) == 1:
        blob = b'{"$seq":%d,"$ts":%d%b,"data":%b},' % (first_seq, ts, node, records[0].data)
        batch = Batch(first_seq, ts, 1, blob, array("I", (len(blob),)))
    else:
        batch = _render_bare([record.data for record in records], node, first_seq, ts, joined_bytes_max)
    if request.node is not None:
        batch.node_names = [request.node]
        batch.nodes = array("I", (1,)) * batch.count
    return batch


def render_headless(request: AppendRequest, first_seq: int, ts: int, *, bare: bool) -> Batch:
    """Records whose seqs and time are decided later: NO_HEAD marks their place. To be joined, see `render`."""
    records = request.records
    if not bare:
        return _drafted(records, request.node).batch([NO_HEAD] * len(records), first_seq, ts, 0)
    node = b"" if request.node is None else b',"$node":' + _encode_string(request.node)
    payloads = [record.data for record in records]
    start = b'%b%b,"data":' % (NO_HEAD, node)
    parts: list[bytes | Raw] = [b"},"] * (3 * len(records))
    parts[0::3] = [start] * len(records)
    parts[1::3] = payloads
    fixed = len(start) + 2
    batch = Batch.rendered(first_seq, ts, parts, [len(data) + fixed for data in payloads], 0)
    if request.node is not None:
        batch.node_names = [request.node]
        batch.nodes = array("I", (1,)) * batch.count
    return batch


def join_unless_large(batches: Sequence[Batch]) -> None:
    """Batches that are large together are joined by the thread that writes them."""
    if sum([batch.size for batch in batches]) <= DEFERRED_BYTES_MIN:
        for batch in batches:
            batch.join()


def _render_bare(payloads: Sequence[Raw], node: bytes, first_seq: int, ts: int, joined_bytes_max: int) -> Batch:
    """The hot loop: one list of parts joined once; it leaves no object per record."""
    count = len(payloads)
    middle = b',"$ts":%d%b,"data":' % (ts, node)
    heads = [b'{"$seq":%d' % seq for seq in range(first_seq, first_seq + count)]
    parts: list[bytes | Raw] = [middle] * (4 * count)
    parts[0::4] = heads
    parts[2::4] = payloads
    parts[3::4] = [b"},"] * count
    fixed = len(middle) + 2
    if len(heads[0]) == len(heads[-1]):
        # All seqs have the same number of digits, as nearly always.
        fixed += len(heads[0])
        sizes = [len(payload) + fixed for payload in payloads]
    else:
        sizes = [len(head) + len(payload) + fixed for head, payload in zip(heads, payloads, strict=True)]
    return Batch.rendered(first_seq, ts, parts, sizes, joined_bytes_max)


def _render_one(record: RecordRequest, batch_node: str | None, first_seq: int, ts: int) -> Batch:
    """Like `_render_columns`, for the usual append of one record, which needs no columns."""
    node = record.node if record.node is not None else batch_node
    origin = b"" if node is None else b',"$node":' + _encode_string(node)
    meta = b"" if record.meta is UNSET else b',"meta":%b' % record.meta
    blob = b'{"$seq":%d,"$ts":%d%b,"data":%b%b},' % (first_seq, ts, origin, record.data, meta)
    batch = Batch(first_seq, ts, 1, blob, array("I", (len(blob),)))
    if node is not None:
        batch.node_names, batch.nodes = [node], array("I", (1,))
    if record.tag is not None:
        batch.tags = b"\1" + record.tag.encode()
        batch.tag_ends = array("I", (len(batch.tags),))
    if record.meta is not UNSET:
        batch.metas = array("I", (len(record.meta),))
    return batch


class DraftPiece(NamedTuple):
    """Rendered parts of `records` records; every `stride`-th part is the place of a head."""

    parts: list[bytes | Raw]
    stride: int
    records: int


class Draft:
    """Records as they are stored, except for their heads: seqs and time are known when the batch is decided.

    All of it follows from the request alone, so the draft of a large batch is made piece by piece, before that. It is
    made column by column, which for thousands of records takes a third of the time of record by record. A `bare` batch
    has no columns, and an empty draft. `unique` is the column of unique keys. `for_logs`: no record has a job's field.
    """

    __slots__ = (
        "_has_metas",
        "_has_tags",
        "_metas",
        "_names",
        "_nodes",
        "_numbers",
        "_pieces",
        "_sizes",
        "_tags",
        "bare",
        "for_logs",
        "tag_filter",
        "tag_order",
        "unique",
    )

    def __init__(self, *, bare: bool) -> None:
        self.bare = bare
        self.for_logs = bare
        self.unique: bytes | None = None
        self._pieces: list[DraftPiece] = []
        self._sizes: list[int] = []
        self._names: list[str] = []
        self._numbers: dict[str | None, int] = {None: 0}
        self._nodes: array[int] = array("I")
        self._metas: array[int] = array("I")
        self._tags: list[bytes] = []
        self._has_metas = self._has_tags = False
        self.tag_order: array[int] | None = None
        self.tag_filter: bytes | None = None

    def add(self, records: Sequence[RecordRequest], batch_node: str | None) -> None:
        count = len(records)
        payloads = [record.data for record in records]
        middles = self._add_nodes([record.node for record in records], batch_node)
        sizes = [len(middle) + len(payload) + 2 for middle, payload in zip(middles, payloads, strict=True)]
        metas = [record.meta for record in records]
        plain = metas.count(UNSET) == count
        stride = 4 if plain else 6
        parts: list[bytes | Raw] = [b"},"] * (stride * count)
        parts[1::stride], parts[2::stride] = middles, payloads
        if plain:
            self._metas.frombytes(bytes(4 * count))
        else:
            self._has_metas = True
            parts[3::stride] = [b"" if meta is UNSET else b',"meta":' for meta in metas]
            parts[4::stride] = [b"" if meta is UNSET else meta for meta in metas]
            lengths = [0 if meta is UNSET else len(meta) for meta in metas]
            self._metas.extend(lengths)
            sizes = [size + length + 8 if length else size for size, length in zip(sizes, lengths, strict=True)]
        tags = [record.tag for record in records]
        if tags.count(None) < count:
            self._has_tags = True
            self._tags += [b"" if tag is None else b"\1" + tag.encode() for tag in tags]
        else:
            self._tags += [b""] * count
        self._sizes += sizes
        self._pieces.append(DraftPiece(parts, stride, count))

    def _add_nodes(self, nodes: list[str | None], batch_node: str | None) -> list[bytes]:
        """The text between the head of each record and its data."""
        if batch_node is not None:
            nodes = [batch_node if node is None else node for node in nodes]
        numbers = self._numbers
        middles: dict[str | None, bytes] = {}
        for node in dict.fromkeys(nodes):
            middles[node] = b',"data":' if node is None else b',"$node":%b,"data":' % _encode_string(node)
            if node is not None and node not in numbers:
                self._names.append(node)
                numbers[node] = len(self._names)
        if len(middles) == 1:
            self._nodes.extend(array("I", (numbers[nodes[0]],)) * len(nodes))
            return [middles[nodes[0]]] * len(nodes)
        self._nodes.extend([numbers[node] for node in nodes])
        return [middles[node] for node in nodes]

    @property
    def size(self) -> int:
        """Bytes without the heads."""
        return sum(self._sizes)

    def tag_column(self) -> tuple[bytes, array[int]] | None:
        """Tags back to back, each after a byte 1, and where each ends; None without any."""
        return (b"".join(self._tags), array("I", accumulate(map(len, self._tags)))) if self._has_tags else None

    def batch(self, heads: Sequence[bytes], first_seq: int, ts: int, joined_bytes_max: int) -> Batch:
        width = len(heads[0])
        if width == len(heads[-1]):
            sizes = [size + width for size in self._sizes]
        else:
            sizes = [size + len(head) for size, head in zip(self._sizes, heads, strict=True)]
        parts: list[bytes | Raw] = []
        done = 0
        for piece in self._pieces:
            piece.parts[0 :: piece.stride] = heads[done : done + piece.records]
            parts += piece.parts
            done += piece.records
        batch = Batch.rendered(first_seq, ts, parts, sizes, joined_bytes_max)
        if self._names:
            batch.node_names, batch.nodes = self._names, self._nodes
        if self._has_metas:
            batch.metas = self._metas
        column = self.tag_column()
        if column is not None:
            batch.tags, batch.tag_ends = column
            batch.tag_order, batch.tag_filter = self.tag_order, self.tag_filter
        return batch


def _drafted(records: Sequence[RecordRequest], batch_node: str | None) -> Draft:
    draft = Draft(bare=False)
    draft.add(records, batch_node)
    return draft


def drafting(request: AppendRequest, *, bare: bool) -> Generator[None, None, Draft]:
    """Draft a checked batch; pauses after each millisecond or so of work."""
    draft = Draft(bare=bare)
    if not bare:
        unique: list[bytes] = []
        jobs = False
        for at in range(0, len(request.records), DRAFTED_PER_STEP):
            if at:
                yield
            some = request.records[at : at + DRAFTED_PER_STEP]
            draft.add(some, request.node)
            unique.append(unique_column(record.unique_key for record in some))
            jobs = jobs or _job_columns(some, b"", 0) is not None
        draft.unique = b"".join(unique)
        draft.for_logs = not jobs
    return draft


def _job_columns(records: Sequence[RecordRequest], unique: bytes | None, ts: int) -> JobColumns | None:
    if len(records) == 1:
        record = records[0]
        if not record.delay_ms and record.unique_key is None and not record.job_priority and record.group is None:
            return None
    delays = [record.delay_ms for record in records]
    keys = [record.unique_key for record in records]
    priorities = bytes([record.job_priority for record in records])
    groups = group_column([record.group for record in records])
    if not any(priorities):
        priorities = b""
        if not any(delays) and keys.count(None) == len(keys) and groups is None:
            return None
    if max(delays) > DELAY_MS_MAX:
        delays = [min(DELAY_MS_MAX, delay_ms) for delay_ms in delays]
    return JobColumns(array("I", delays), unique if unique is not None else unique_column(keys), ts, priorities, groups)


def unique_column(keys: Iterable[str | None]) -> bytes:
    """The 16-byte digest of each unique key; zeros for none."""
    copy = _unkeyed.copy
    column: list[bytes] = []
    for key in keys:
        if key is None:
            column.append(NO_KEY)
        else:
            hashing = copy()
            hashing.update(key.encode())
            column.append(hashing.digest())
    return b"".join(column)


def unique_keys(column: bytes) -> list[bytes]:
    """The digests of a column, one for each record."""
    return [key for (key,) in _digests.iter_unpack(column)]
