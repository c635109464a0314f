"""A topic as a snapshot stores it, and back.

A block's image, kept until the block changes, so that an unchanged topic costs one join:

    | first_seq u64 | last_seq u64 | first_ts u64 | last_ts u64 | live_bytes u64 | pack u64 | offset u64 | length u64 |
    | count u32 | live u32 | start u32 | segment u32 | dead_len u32 | seqs_len u32 | filter_len u32 (2³²−1: no tags) |
    | dead (zlib of a byte per record) | seqs u64… | filter |
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec import Raw

from topics.engine.core.feature import Feature
from topics.engine.log.block import Block
from topics.engine.log.idempotency import Written
from topics.engine.log.retention import Hole, Loss, note_hole
from topics.engine.log.topic import Topic
from topics.model.requests.config import TopicConfig
from topics.storage.pack import Extent
from topics.storage.steps import Steps

_BLOCK = struct.Struct("<8Q7I")
_KEY = struct.Struct("<16sQQI")
_NO_TAGS = 2**32 - 1
# Blocks or keys of one topic that are decoded in one step.
ITEMS_PER_STEP = 256
NOTHING, EMPTY = Raw(b"\xc0"), Raw(b"\x90")


class TopicImage(msgspec.Struct, array_like=True):
    """An array: the index of a field never changes. Raw fields belong to a feature, which encodes and decodes them."""

    id: int
    name: str
    epoch: int
    config: TopicConfig
    head_seq: int
    evict_floor: int
    ceiling: int
    clock_ms: int
    last_write_ts: int | None
    last_read_ts: int | None
    segment: int
    segment_events: int
    segment_bytes: int
    segment_ts: int
    losses: list[tuple[int, int, int, str]]
    holes: list[tuple[int, int, str]]
    # Records of an ephemeral topic that were in memory, and are lost when this is read.
    resident: int
    blocks: bytes
    keys: bytes
    queue: Raw = NOTHING
    # The router into this topic, where its copies are, and removed blocks that may still have to be copied from.
    router: Raw = NOTHING
    evidence: Raw = EMPTY
    left_blocks: bytes = b""
    # Consumer groups.
    groups: Raw = EMPTY
    # Up to where the records of an ephemeral topic are not ephemeral.
    lasting_to: int = 0
    # The seqs of those keys whose records are not simply those of one batch.
    answers: dict[bytes, list[int]] = {}
    # Dead letters by queue. None: version 0.1 did not store it.
    letters: bytes | None = None
    # How many records each of `holes` had.
    holes_lost: list[int] = []


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(TopicImage)


def encode_topic(topic: Topic, extents: dict[Block, Extent], features: Sequence[Feature]) -> bytes:
    """`extents` has the positions at which this checkpoint packs blocks.

    An ephemeral topic keeps its head, not its records, except for those written before it was ephemeral.
    """
    ephemeral = topic.config.durability == "ephemeral"
    lasting = topic.lasting_blocks()
    window_ms = topic.config.idempotency_window_ms
    known = topic.keys.entries(topic.clock_ms - window_ms) if topic.keys is not None else ()
    keys = [(key, written) for key, written in known if topic.lasts(written.first_seq)]
    image = TopicImage(
        id=topic.id,
        name=topic.name,
        epoch=topic.epoch,
        config=topic.config,
        head_seq=topic.head_seq,
        evict_floor=topic.evict_floor,
        ceiling=topic.ceiling,
        clock_ms=topic.clock_ms,
        last_write_ts=topic.last_write_ts,
        last_read_ts=topic.last_read_ts,
        segment=topic.segment,
        segment_events=topic.segment_events,
        segment_bytes=topic.segment_bytes,
        segment_ts=topic.segment_ts,
        losses=list(topic.losses),
        holes=[hole[:3] for hole in topic.holes],
        holes_lost=[hole.lost for hole in topic.holes],
        resident=topic.count - sum(block.live for block in lasting) if ephemeral else 0,
        lasting_to=topic.lasting_to,
        blocks=b"".join([block_image(block, extents) for block in lasting]),
        keys=b"".join([_KEY.pack(key, *written[:3]) for key, written in keys]),
        answers={key: written.seqs for key, written in keys if written.seqs is not None},
        letters=b"",
    )

    def images_of(blocks: Iterable[Block]) -> bytes:
        return b"".join([block_image(block, extents) for block in blocks])

    for feature in features:
        feature.encode(topic, image, images_of)
    return _encoder.encode(image)


def block_image(block: Block, extents: dict[Block, Extent]) -> bytes:
    """The block without its body, with its position in `extents`, or its existing one."""
    if block.image is not None and block not in extents:
        return block.image
    extent = extents.get(block) or block.extent
    assert extent is not None, "a checkpoint packs every block it captures"
    dead = b"" if block.dead is None else zlib.compress(bytes(block.dead), 1)
    seqs = b"" if block.seqs is None else block.seqs.tobytes()
    tag_filter = block.tag_filter
    if tag_filter is None and block.growing and block.body is not None and block.body.tags is not None:
        tag_filter = b""
    image = (
        _BLOCK.pack(
            block.first_seq,
            block.last_seq,
            block.first_ts,
            block.last_ts,
            block.live_bytes,
            *extent,
            block.count,
            block.live,
            block.start,
            block.segment,
            len(dead),
            len(seqs),
            _NO_TAGS if tag_filter is None else len(tag_filter),
        )
        + dead
        + seqs
        + (tag_filter or b"")
    )
    if block not in extents:
        block.image = image
    return image


def decode_topic(chunk: bytes, features: Sequence[Feature]) -> Steps[Topic]:
    image = _decoder.decode(chunk)
    topic = Topic(image.id, image.name, image.epoch, image.config, image.ceiling)
    topic.head_seq = image.head_seq
    topic.evict_floor = image.evict_floor
    topic.clock_ms = image.clock_ms
    topic.last_write_ts, topic.last_read_ts = image.last_write_ts, image.last_read_ts
    topic.segment, topic.segment_events = image.segment, image.segment_events
    topic.segment_bytes, topic.segment_ts = image.segment_bytes, image.segment_ts
    topic.losses = [Loss(*loss) for loss in image.losses]
    # A snapshot of version 0.1 does not store how many records a hole had: as many as it has seqs.
    lost = image.holes_lost or [to_seq - from_seq + 1 for from_seq, to_seq, _ in image.holes]
    topic.holes = [Hole(*hole, lost[number]) for number, hole in enumerate(image.holes)]
    topic.logged_floor, topic.lasting_to = image.evict_floor, image.lasting_to
    for block in decode_blocks(image.blocks):
        topic.blocks.append(block)
        topic.count += block.live
        topic.bytes += block.live_bytes
        if len(topic.blocks) % ITEMS_PER_STEP == 0:
            yield
    if image.resident:
        note_hole(topic, max(topic.lasting_to + 1, topic.evict_floor), topic.head_seq, image.resident)
    if image.keys:
        for number, (key, ts, first_seq, count) in enumerate(_KEY.iter_unpack(image.keys)):
            topic.note_key(key, Written(ts, first_seq, count, image.answers.get(key)))
            if number % ITEMS_PER_STEP == 0:
                yield
    for feature in features:
        feature.created(topic)
        feature.decode(topic, image)
    return topic


def decode_blocks(data: bytes) -> Iterator[Block]:
    """Blocks from their images, one after the other; their bodies are on disk."""
    at = 0
    while at < len(data):
        block, at = _decode_block(data, at)
        yield block


def _decode_block(data: bytes, at: int) -> tuple[Block, int]:
    fields = _BLOCK.unpack_from(data, at)
    first_seq, last_seq, first_ts, last_ts, live_bytes = fields[:5]
    count, live, start, segment, dead_len, seqs_len, filter_len = fields[8:]
    block = Block(first_seq, first_ts, segment)
    block.last_seq, block.last_ts = last_seq, last_ts
    block.count, block.live, block.start, block.live_bytes = count, live, start, live_bytes
    block.extent, block.packed = Extent(*fields[5:8]), count
    begin = at
    at += _BLOCK.size
    if dead_len:
        block.dead = bytearray(zlib.decompress(data[at : at + dead_len]))
        at += dead_len
    if seqs_len:
        block.seqs = array("Q", data[at : at + seqs_len])
        at += seqs_len
    if filter_len != _NO_TAGS:
        block.tag_filter = data[at : at + filter_len]
        at += filter_len
    block.image = data[begin:at]
    return block, at
