"""Large bodies: decoded in pieces they give what decoding at once gives, and too many records are refused early."""

import json
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.model.errors import BatchTooLarge, InvalidRequest, RecordTooLarge, TopicsError
from topics.model.requests import large_bodies
from topics.model.requests.large_bodies import LARGE_BYTES, PIECE_BYTES, decode_large, decode_large_topics
from topics.model.requests.multi_append import MultiAppendRequest
from topics.model.requests.records import AppendRequest, append_decoder, decode_body

T = TypeVar("T")
LIMITS: Any = SimpleNamespace(max_batch_records=10_000, max_record_bytes=1024 * 1024, max_meta_bytes=16_384)


def decoded(body: bytes, limits: Any = LIMITS) -> tuple[AppendRequest, int]:
    """The result, and in how many steps."""
    return run_through(decode_large(append_decoder, body, limits))


def run_through(decoding: Generator[None, None, T]) -> tuple[T, int]:
    steps = 0
    while True:
        try:
            next(decoding)
        except StopIteration as end:
            return end.value, steps
        steps += 1


def seen(request: AppendRequest) -> Any:
    records = [
        (bytes(r.data), r.tag, r.node, r.meta and bytes(r.meta), r.delay_ms, r.unique_key) for r in request.records
    ]
    return records, request.node, request.idempotency_key, request.create


def body_of(records: list[Any], **fields: Any) -> bytes:
    return json.dumps({"records": records, **fields}).encode()


# Payloads that look like the seams between records.
TRICKY = ["},{", '},{"data":', '"records":[', "]}", "\\", '\\"', 'é},{"tag":', {"data": 1}, [{"data": 1}, {"data": 2}]]
payloads = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(max_size=20), st.sampled_from(TRICKY)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=6),
        st.dictionaries(st.sampled_from(["data", "tag", "x", "records"]), inner, max_size=4),
    ),
    max_leaves=20,
)
records = st.lists(
    st.fixed_dictionaries({"data": payloads}, optional={"tag": st.text(max_size=5), "meta": st.just({"a": [{}, {}]})}),
    min_size=1,
    max_size=12,
)


@given(records, st.booleans(), st.sampled_from([None, (",", ":"), (" ,\n ", " : ")]))
def test_piece_by_piece_gives_what_one_go_gives(records: list[Any], envelope_first: bool, separators: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_bodies, "PIECE_BYTES", 100)
        patch.setattr(large_bodies, "RECORD_EXTRA_BYTES", 100)
        fields: dict[str, Any] = {"idempotency_key": "k", "node": "n"}
        body = json.dumps(
            {**fields, "records": records} if envelope_first else {"records": records, **fields},
            separators=separators,
            ensure_ascii=False,
        ).encode()
        limits = SimpleNamespace(max_batch_records=10_000, max_record_bytes=5_000, max_meta_bytes=16_384)
        whole = decode_body(append_decoder, body)
        assert seen(decoded(body, limits)[0]) == seen(whole)


def test_a_step_decodes_little_of_a_large_batch() -> None:
    body = body_of([{"data": {"items": [{"a": 1}, {"a": 2}], "text": "z" * 2_000}, "tag": "t"}] * 5_000)
    request, steps = decoded(body)
    assert len(request.records) == 5_000
    assert steps > len(body) / PIECE_BYTES / 2


def test_records_that_hold_what_looks_like_records_are_walked_through_in_small_steps() -> None:
    inner = [{"data": n, "tag": "x"} for n in range(10_000)]
    body = body_of([{"data": inner}] * 8)
    request, steps = decoded(body)
    assert len(request.records) == 8
    assert steps > 8


def test_too_many_records_are_refused_before_they_are_decoded() -> None:
    body = b'{"records":[' + b'{"data":1},' * 2_000_000 + b'{"data":1}]}'
    steps: list[None] = []
    with pytest.raises(BatchTooLarge) as caught:
        steps.extend(decode_large(append_decoder, body, LIMITS))
    assert len(steps) <= 3
    assert caught.value.detail == {"field": "records", "max": 10_000}


@pytest.mark.parametrize(
    ("body", "kind", "field"),
    [
        (b'{"records":[' + b"1," * 2_000_000 + b"1]}", InvalidRequest, "records[0]"),
        (b'{"records":[' + b" " * 3_000_000 + b'{"data":1}]}', InvalidRequest, "records[0]"),
        (b'{"records":[{"data":"' + b"a" * 3_000_000 + b'"}]}', RecordTooLarge, "records[0]"),
        (b'{"node":"' + b"a" * 3_000_000 + b'","records":[{"data":1}]}', InvalidRequest, "records"),
        (b'{"records":[{"data":1}]' + b" " * 3_000_000 + b"}", RecordTooLarge, "records[0]"),
        (b"[" * 3_000_000, InvalidRequest, "records"),
    ],
    ids=["numbers", "spaces", "one huge record", "records late", "records early", "brackets"],
)
def test_odd_bodies_are_refused(body: bytes, kind: type[TopicsError], field: str) -> None:
    with pytest.raises(kind) as caught:
        decoded(body)
    assert caught.value.detail["field"] == field


def test_a_mistake_is_reported_with_the_number_of_its_record() -> None:
    records: list[Any] = [{"data": "z" * 1_000} for _ in range(4_000)]
    records[3_000] = {"data": "z", "tagg": "x"}
    body = body_of(records)
    assert len(body) > LARGE_BYTES
    with pytest.raises(InvalidRequest) as caught:
        decoded(body)
    assert caught.value.detail == {"field": "records[3000].tagg", "nearest": "tag"}
    assert caught.value.message.startswith("records[3000].tagg is not a known field")


def test_bytes_that_are_not_utf_8_are_refused_wherever_they_are() -> None:
    good = body_of([{"data": "é" * 1_000} for _ in range(4_000)])
    middle = len(good) // 2
    with pytest.raises(InvalidRequest, match="not valid UTF-8"):
        decoded(good[:middle] + b"\xff" + good[middle + 1 :])


def test_records_given_twice_are_refused() -> None:
    body = body_of([{"data": "z" * 1_000}] * 3_000)[:-1] + b',"records":[{"data":1}]}'
    with pytest.raises(InvalidRequest, match="records is given twice"):
        decoded(body)
    inside = body_of([{"data": "z" * 1_000}] * 3_000 + [{"data": {"records": [1, 2]}}])
    assert len(decoded(inside)[0].records) == 3_001


@pytest.mark.parametrize("spaces", [0, 200_000, 1_150_000])
@pytest.mark.parametrize("record_bytes", [1_000, 100_000, 1_000_000])
def test_a_comma_after_the_last_record_is_refused(record_bytes: int, spaces: int) -> None:
    record = b'{"data":"%s"}' % (b"z" * record_bytes)
    records = b",".join([record] * (1 + 2_000_000 // record_bytes))
    for end in (b",]" + b" " * spaces, b"," + b" " * spaces + b"]"):
        with pytest.raises(TopicsError):
            decoded(b'{"records":[' + records + end + b"}")


# --- several topics ---

multi_decoder = msgspec.json.Decoder(MultiAppendRequest)
names = st.sampled_from(["a", "b:c", "records", '"records":[', "é"])


def decoded_topics(body: bytes, limits: Any = LIMITS) -> tuple[MultiAppendRequest, int]:
    return run_through(decode_large_topics(multi_decoder, body, limits))


def seen_topics(request: MultiAppendRequest) -> Any:
    parts = {
        name: ([(bytes(r.data), r.tag, r.meta and bytes(r.meta)) for r in part.records], part.node)
        for name, part in request.topics.items()
    }
    return list(parts), parts, request.idempotency_key


@given(
    st.dictionaries(names, st.tuples(records, st.booleans()), min_size=1),
    st.booleans(),
    st.sampled_from([None, (",", ":"), (" ,\n ", " : ")]),
    st.integers(50, 400),
)
def test_lists_of_several_topics_piece_by_piece_give_what_one_go_gives(
    topics: dict[str, Any], key_first: bool, separators: Any, piece_bytes: int
) -> None:
    parts = {
        name: {"records": given, "node": "n"} if first else {"node": "n", "records": given}
        for name, (given, first) in topics.items()
    }
    fields = {"idempotency_key": "k", "topics": parts} if key_first else {"topics": parts, "idempotency_key": "k"}
    body = json.dumps(fields, separators=separators).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_bodies, "PIECE_BYTES", piece_bytes)
        assert seen_topics(decoded_topics(body)[0]) == seen_topics(decode_body(multi_decoder, body))


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"topics":{"a":{"records":[{"data":1}]},"a":{"records":[{"data":2}]}}}', "topics"),
        (b'{"topics":{"a":{"records":[{"data":1}],"records":[{"data":2}]}}}', "topics"),
        (b'{"topics":{"a":{"records":[{"data":1}]},"b":{"records":[{"data":2},{"data":3,"tg":1}]}}}', "topics[...].records[1].tg"),  # noqa: E501
        (b'{"topics":{"a":{"records":[{"data":1},]}}}', "topics[...].records[1]"),
        (b'{"topics":{"a":{"records":[{"data":1}', "topics[...].records[0]"),
        (b'{"topics":{"a":{"records":[{"data":1}]', "body"),
        (b'{"topics":{"a":{"records":[5]}}}', "topics[...].records[0]"),
        (b'{"topics":{"a":{"records":[{"data":' + b"[" * 300 + b"]" * 300 + b"}]}}}", "topics[...].records[0].data"),
        (b'{"topics":{"a":{"records":[{"data":1}],"config":{"records":[{"data":1}]}}}}', "topics[...].config.records"),
        (b'{"topics":{"a":{"records":[{"data":1}],"nod":"' + b"x" * LARGE_BYTES + b'"}}}', "topics"),
    ],
)  # fmt: skip
def test_mistakes_in_lists_of_several_topics(body: bytes, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decoded_topics(body)
    assert caught.value.detail["field"] == field


def test_a_large_body_for_several_topics_is_decoded_in_pieces_and_refused_early() -> None:
    given = [{"data": "x" * 1000}] * 2_000
    body = json.dumps({"topics": {f"t{number}": {"records": given} for number in range(5)}}).encode()
    request, steps = decoded_topics(body)
    assert [len(part.records) for part in request.topics.values()] == [2_000] * 5
    assert steps >= len(body) // (2 * PIECE_BYTES)
    too_many = json.dumps({"topics": {f"t{number}": {"records": given} for number in range(6)}}).encode()
    with pytest.raises(BatchTooLarge):
        decoded_topics(too_many)
