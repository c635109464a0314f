"""Payloads come back byte for byte, from memory, from disk, and after restarts."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.conftest import COLD, OpenRig
from tests.engine.rig import Rig
from tests.examples import examples

PAYLOADS = [
    b"123456789012345678901234567890",
    b"-0",
    b"-0.0",
    b"1.10",
    b"1e5",
    b"1E+05",
    b"0.1e-7",
    b"1.7976931348623157e309",
    b"null",
    b"true",
    b'""',
    b"[]",
    b"{}",
    b'{"b":1,"a":2}',
    b'{"a":1,"a":2,"a":3}',
    b'{ "a" :\t[ 1 , 2 ] ,\r\n "b" : { } }',
    b'"\\u00e9\\/\\n\\t\\"\\\\"',
    '"é ☃ 𝄞 \u2028 \u2029 \x7f"'.encode(),
    b'"\\ud834\\udd1e"',
    b'"\\u0000"',
    b'{"$seq":99,"$ts":1,"data":2,"meta":3}',
    b'"\\",\\"data\\":"',
    b'["},{",",\\"meta\\":{}}"]',
    b'"' + b"x" * 300_000 + b'"',
    b"[" * 200 + b"]" * 200,
]


def as_stored(rig: Rig, topic: str, **fields: object) -> list[bytes]:
    """The bytes of each record, one read each."""
    found: list[bytes] = []
    cursor = 0
    while True:
        diff = rig.diff(topic, cursor, limit=1, **fields)
        if diff.count:
            found.append(diff.records())
        if diff.caught_up:
            return found
        cursor = diff.next_from_seq


def rendered(seq: int, ts: int, data: bytes, rest: bytes = b"") -> bytes:
    return b'{"$seq":%d,"$ts":%d,"data":%b%b}' % (seq, ts, data, rest)


@pytest.mark.parametrize("together", [True, False])
def test_payloads_are_never_touched(open_rig: OpenRig, together: bool) -> None:
    rig = open_rig(**COLD)
    if together:
        rig.append_body("a", b'{"records":[%b]}' % b",".join(b'{"data":%b}' % data for data in PAYLOADS))
    else:
        for data in PAYLOADS:
            rig.append_body("a", b'{"records":[{"data":%b}]}' % data)
    wanted = [rendered(seq, rig.clock.now_ms(), data) for seq, data in enumerate(PAYLOADS, 1)]
    assert as_stored(rig, "a") == wanted
    rig.crash()
    assert as_stored(rig, "a") == wanted
    rig.checkpoint()
    assert as_stored(rig, "a") == wanted
    rig.reopen()
    assert as_stored(rig, "a") == wanted


@pytest.mark.parametrize(
    "meta", [b"{}", b'{"trace":"z9"}', b'{ "b" : 1.10 , "a":\t123456789012345678901234567890, "b":null }']
)
def test_meta_is_never_touched(open_rig: OpenRig, meta: bytes) -> None:
    rig = open_rig(**COLD)
    rig.append_body("a", b'{"records":[{"data":1,"meta":%b},{"meta":%b,"data":{ "x":2 }}, {"data":3}]}' % (meta, meta))
    ts = rig.clock.now_ms()
    full = [
        rendered(1, ts, b"1", b',"meta":' + meta),
        rendered(2, ts, b'{ "x":2 }', b',"meta":' + meta),
        rendered(3, ts, b"3"),
    ]
    bare = [rendered(1, ts, b"1"), rendered(2, ts, b'{ "x":2 }'), rendered(3, ts, b"3")]
    assert as_stored(rig, "a") == full
    assert as_stored(rig, "a", include_meta=False) == bare
    rig.reopen()
    assert as_stored(rig, "a") == full
    assert as_stored(rig, "a", include_meta=False) == bare


def test_payload_that_looks_like_the_envelope_is_not_mistaken_for_it(rig: Rig) -> None:
    data = b'{"x":",\\"meta\\":{},\\"data\\":1"}'
    node = b',\\"data\\":\\"$tag\\"'
    record = b'{"data":%b,"tag":"t\\"","node":"%b","meta":{"data":1}}' % (data, node)
    rig.append_body("a", b'{"records":[%b]}' % record)
    ts = rig.clock.now_ms()
    head = b'{"$seq":1,"$ts":%d,"$node":"%b"' % (ts, node)
    assert rig.diff("a").records() == head + b',"data":%b,"meta":{"data":1}}' % data
    assert rig.diff("a", include_meta=False).records() == head + b',"data":%b}' % data
    tagged = rig.diff("a", include_tags=True, include_meta=False).records()
    assert tagged == head + b',"$tag":"t\\"","data":%b}' % data


json_texts = st.recursive(
    st.one_of(
        st.sampled_from([b"null", b"true", b"1.10", b"1e9", b'"x"', b'"\\u00e9"', b"98765432109876543210987654321"]),
        st.integers().map(lambda number: b"%d" % number),
        st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters='"\\')).map(
            lambda text: b'"%b"' % text.encode()
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda items: b"[ %b\t]" % b" ,".join(items)),
        st.lists(st.tuples(st.sampled_from([b"a", b"b"]), inner), max_size=4).map(
            lambda items: b"{%b\n}" % b", ".join(b'"%b" :%b' % item for item in items)
        ),
    ),
    max_leaves=8,
)


@given(payloads=st.lists(json_texts, min_size=1, max_size=6))
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_json_comes_back_as_it_was(rig: Rig, payloads: list[bytes]) -> None:
    rig.drop("a")
    rig.append_body("a", b'{"records":[%b]}' % b",".join(b'{"data": %b }' % data for data in payloads))
    assert as_stored(rig, "a") == [rendered(seq, rig.clock.now_ms(), data) for seq, data in enumerate(payloads, 1)]
