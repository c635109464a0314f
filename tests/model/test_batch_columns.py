"""Batches whose records have more than data: rendered column by column, they are what each record says by itself."""

from __future__ import annotations

import hashlib
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from topics.model.errors import InvalidRequest
from topics.model.requests import batch as batches
from topics.model.requests.batch import (
    NO_HEAD,
    NO_KEY,
    Batch,
    Draft,
    check_batch,
    checking_metas,
    render,
    render_headless,
    unique_column,
    unique_keys,
)
from topics.model.requests.records import AppendRequest, RecordRequest

LIMITS: Any = SimpleNamespace(
    max_batch_records=10_000, max_record_bytes=1 << 20, max_meta_bytes=16_384, max_tag_bytes=256, max_node_bytes=128
)
names = st.sampled_from(["", "a", "b", 'quo"te', "ä\1"])
records = st.builds(
    RecordRequest,
    data=st.sampled_from([Raw(b"1"), Raw(b'{"a":"b"}')]),
    tag=st.none() | names,
    node=st.none() | names,
    meta=st.sampled_from([UNSET, Raw(b'{"k":1}'), Raw(b"{}")]),
    delay_ms=st.sampled_from([0, 5, 2**63]),
    unique_key=st.none() | st.sampled_from(["k", "l", "ö"]),
)


def text_of(record: RecordRequest, head: bytes, node: str | None) -> bytes:
    node = node if record.node is None else record.node
    origin = b"" if node is None else b',"$node":' + msgspec.json.encode(node)
    meta = b"" if record.meta is UNSET else b',"meta":' + bytes(record.meta)
    return b'%b%b,"data":%b%b},' % (head, origin, bytes(record.data), meta)


def check_columns(batch: Batch, given: list[RecordRequest], node: str | None, texts: list[bytes]) -> None:
    assert batch.join() == b"".join(texts)
    assert list(batch.ends) == list(accumulate(map(len, texts)))
    nodes = [record.node if record.node is not None else node for record in given]
    if batch.nodes is None:
        assert nodes == [None] * len(given)
    else:
        assert [batch.node_names[number - 1] if number else None for number in batch.nodes] == nodes
        assert batch.node_names == [name for name in dict.fromkeys(nodes) if name is not None]
    tags = [b"" if record.tag is None else b"\1" + record.tag.encode() for record in given]
    assert (batch.tags or b"") == b"".join(tags)
    assert (batch.tags is None) == (not any(tags))
    if batch.tag_ends is not None:
        assert list(batch.tag_ends) == list(accumulate(map(len, tags)))
    metas = [0 if record.meta is UNSET else len(record.meta) for record in given]
    assert list(batch.metas or [0] * len(given)) == metas


@given(st.lists(records, min_size=1, max_size=6), st.none() | names, st.booleans())
def test_a_batch_is_what_its_records_say(given: list[RecordRequest], node: str | None, deferred: bool) -> None:
    most = 0 if deferred else batches.ALWAYS_JOINED
    batch = render(AppendRequest(given, node), 8, 99, bare=False, joined_bytes_max=most)
    texts = [text_of(record, b'{"$seq":%d,"$ts":99' % seq, node) for seq, record in enumerate(given, 8)]
    check_columns(batch, given, node, texts)
    if batch.jobs is None:
        assert not any(record.delay_ms or record.unique_key for record in given)
    else:
        assert list(batch.jobs.delays) == [min(86_400_000, record.delay_ms) for record in given]
        assert batch.jobs.unique == unique_column(record.unique_key for record in given)


@given(st.lists(records, min_size=1, max_size=6), st.none() | names)
def test_so_is_one_whose_heads_come_later(given: list[RecordRequest], node: str | None) -> None:
    batch = render_headless(AppendRequest(given, node), 8, 99, bare=False)
    check_columns(batch, given, node, [text_of(record, NO_HEAD, node) for record in given])


@given(st.lists(records, min_size=1, max_size=6), st.none() | names, st.integers(1, 4))
def test_so_is_one_that_is_drafted_piece_by_piece(given: list[RecordRequest], node: str | None, piece: int) -> None:
    draft = Draft(bare=False)
    for at in range(0, len(given), piece):
        draft.add(given[at : at + piece], node)
    batch = render(AppendRequest(given, node), 9, 99, bare=False, draft=draft)
    texts = [text_of(record, b'{"$seq":%d,"$ts":99' % seq, node) for seq, record in enumerate(given, 9)]
    check_columns(batch, given, node, texts)


def test_the_digest_of_a_unique_key_is_the_one_that_the_log_has() -> None:
    digest = hashlib.blake2b("ö-1".encode(), digest_size=16, person=b"topics-unique").digest()
    assert unique_keys(unique_column(["ö-1", None, "ö-1"])) == [digest, NO_KEY, digest]


def test_metas_are_checked_in_steps_and_refused_by_number() -> None:
    pairs = b",".join(b'"k%d":{"a":1}' % n for n in range(40))
    given = [RecordRequest(Raw(b"1"), meta=Raw(b"{%b}" % pairs)) for _ in range(5_000)]
    assert sum(1 for _ in checking_metas(given, LIMITS)) >= 5_000 * len(pairs) // batches.METAS_BYTES_PER_STEP
    given[4_321].meta = Raw(b"{%b,%b}" % (pairs, pairs))
    with pytest.raises(InvalidRequest, match=r"records\[4321\]\.meta has 80 keys"):
        list(checking_metas(given, LIMITS))
    assert not check_batch(AppendRequest(given), LIMITS, metas_checked=True), "it does not count again"


def test_a_meta_of_null_is_none() -> None:
    given = [RecordRequest(Raw(b"1"), meta=Raw(b"null"))]
    list(checking_metas(given, LIMITS))
    assert given[0].meta is UNSET
