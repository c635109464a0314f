"""The depth of JSON by its bytes: exact for every text, whatever its strings hold."""

import json
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.model.requests.nesting import NESTING_MAX, TooDeep, decode_deep, decode_limited, is_too_deep

TEXTS = st.text(alphabet='[]{}"\\,:ab')
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=40,
)


def depth(value: Any) -> int:
    if isinstance(value, dict | list):
        return 1 + max(map(depth, value.values() if isinstance(value, dict) else value), default=0)
    return 0


@given(VALUES, st.integers(0, 12))
def test_it_is_exact(value: Any, most: int) -> None:
    for text in (json.dumps(value), json.dumps(value, indent=1, ensure_ascii=False)):
        assert is_too_deep(text.encode(), most) is (depth(value) > most)


@pytest.mark.parametrize("levels", [NESTING_MAX - 1, NESTING_MAX, NESTING_MAX + 1, 2_000, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"[":', "}"), ('["]",', "]"), ("[ ", ",1]")])
def test_it_is_exact_at_the_limit(levels: int, opening: str, closing: str) -> None:
    text = f"{opening * levels}1{closing * levels}".encode()
    assert is_too_deep(text) is (levels > NESTING_MAX)


def down(frames: int, decode: Any) -> Any:
    return down(frames - 1, decode) if frames else decode()


@pytest.mark.parametrize("frames", [0, 100, 300, 700])
def test_the_limit_of_a_body_does_not_depend_on_who_decodes_it(frames: int) -> None:
    decoder = msgspec.json.Decoder(list[msgspec.Raw])
    usual = sys.getrecursionlimit()
    for levels in (1, 200, NESTING_MAX, NESTING_MAX + 1, 900):
        body = b'["%b",1,%b]' % (b"x" * 3_000, b"[" * levels + b"]" * levels)
        if levels <= NESTING_MAX:
            assert len(down(frames, lambda body=body: decode_limited(decoder, body))) == 3
        else:
            with pytest.raises(TooDeep) as refused:
                down(frames, lambda body=body: decode_limited(decoder, body))
            assert refused.value.field == "[2]"
        assert sys.getrecursionlimit() == usual


def test_what_is_stored_is_decoded_however_deep() -> None:
    text = b"[" * 990 + b"]" * 990
    decode = msgspec.json.Decoder(list[msgspec.Raw]).decode
    with pytest.raises(RecursionError):
        down(500, lambda: decode(text))
    assert len(down(500, lambda: decode_deep(decode, text))) == 1
