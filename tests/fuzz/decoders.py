"""What clients send back or bring along: request targets, bodies, cursors and tokens."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Generator
from functools import cache
from typing import Any, TypeVar

import jwt
import msgspec

from topics.api.auth import authenticator_of
from topics.api.groups.tokens import ALGORITHM, ISSUER, Tokens
from topics.api.live.stream_tokens import StreamTokens
from topics.http.content_coding import Decompression
from topics.http.refusal import Refusal
from topics.http.target import check_visible, origin_form, query_pairs, split_target
from topics.model.clock import ManualClock
from topics.model.cloudevents.events_in import decode_batch, decode_binary, decode_structured, event_record
from topics.model.cloudevents.events_out import StoredRecord, render_event
from topics.model.cursors import AfterName, CursorWriter, page_cursor, place_of, positions_of, single_id
from topics.model.errors import InvalidRequest, TopicsError, Unauthorized
from topics.model.requests.config import U64_MAX
from topics.model.requests.records import RecordRequest, append_decoder, decode_body
from topics.model.settings import Settings

T = TypeVar("T")

SECRET = "a secret that is long enough for tests"
NOW_S = 1_700_000_000
BYTES_MAX = 5_000
KEY = "key-of-somebody"


def read_target(data: bytes) -> None:
    with contextlib.suppress(Refusal):
        check_visible(data)
        path, segments, query = split_target(origin_form(data, b"localhost"), "GET")
        assert path[:1] in (b"/", b"*"), path
        assert "/".join(segments).isprintable() or b"%" in path, segments
        assert all(len(pair) == 2 for pair in query_pairs(query))


def target_seeds() -> list[bytes]:
    return [
        b"/v0/topics/a%2Fb/diff?x=1&y=%C3%A9&z",
        b"http://localhost/v0/health?a=b+c",
        b"/%F0%9F%8E%89/..//%00",
        b"*",
        b"/a?%",
    ]


def decompress(data: bytes) -> None:
    with contextlib.suppress(Refusal):
        work = Decompression(data, BYTES_MAX)
        work.run(BYTES_MAX)
        assert len(work.finish()) <= BYTES_MAX


def gzip_seeds() -> list[bytes]:
    one = gzip.compress(b"packed" * 100, mtime=0)
    return [one, one + gzip.compress(b"more", mtime=0), gzip.compress(bytes(BYTES_MAX + 1), mtime=0)]


def read_body(data: bytes) -> None:
    """An append: refused, or it has records whose payloads are JSON as it was sent."""
    try:
        request = decode_body(append_decoder, data)
    except InvalidRequest:
        return
    for record in request.records:
        json.loads(bytes(record.data))


def read_events(data: bytes) -> None:
    """CloudEvents, in each mode: refused with the name of what is wrong, or records that become the same events."""
    settings = Settings()
    records: list[RecordRequest] = []
    refused: list[TopicsError] = []
    head, _, body = data.partition(b"\n\n")
    headers = [(name, value) for name, _, value in (line.partition(b":") for line in head.split(b"\n"))]
    for decode in (
        lambda: [decode_binary(headers, body, settings)],
        lambda: [decode_structured(data, settings)],
        lambda: run_through(decode_batch(data, settings)),
    ):
        try:
            records += decode()
        except TopicsError as error:
            refused.append(error)
    assert all(error.detail["field"] for error in refused)
    for record in records:
        assert isinstance(record.meta, msgspec.Raw)
        shown = render_event("t", 1, StoredRecord(1, 1, record.data, record.meta))
        assert bytes(event_record(shown).data) == bytes(record.data)


def run_through(steps: Generator[Any, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def event_seeds() -> list[bytes]:
    event = (
        b'{"specversion":"1.0","id":"1","source":"/a","type":"t","x":5,"time":"2026-11-17T08:30:00.5+01:00","data":[1]}'
    )
    headers = b'ce-specversion:1.0\nce-id:%41"\nce-source:"/a\\""\nce-type:t\ncontent-type:'
    return [
        event,
        b"[ %b , %b ]" % (event, event.replace(b'"data":[1]', b'"data_base64":"AAE="')),
        headers + b"application/json; charset=utf-8\n\n[1]",
        headers + b"text/plain\n\nhello",
    ]


def body_seeds() -> list[bytes]:
    return [
        b'{"records":[{"data":{"a":[1,2.5e3,"x"]},"tag":"t","meta":{"k":"v"}},{"data":null,"node":"n"}]}',
        b'{"records":[{"data":"x","delay_ms":50,"unique_key":"u","job_priority":9}],"idempotency_key":"k","config":{"type":"queue"}}',
        b'{"records":[{"data":' + b"[" * 40 + b"]" * 40 + b"}]}",
    ]


# --- cursors ---

NAMES = tuple(f"topic-{number}" for number in range(70))


def read_cursor(data: bytes) -> None:
    """Refused, or a position, which written again is the same position."""
    text = data.decode("latin-1")
    with contextlib.suppress(InvalidRequest):
        place = place_of(text, AfterName)
        assert place_of(page_cursor(place), AfterName) == place
    for names in (NAMES[:2], NAMES):
        with contextlib.suppress(InvalidRequest):
            positions = positions_of(text, names)
            assert all(0 <= seq <= U64_MAX for seq in positions.values()), positions


def cursor_seeds() -> list[bytes]:
    few, many = CursorWriter(dict.fromkeys(NAMES[:2], 7), 3), CursorWriter(dict.fromkeys(NAMES, 2**40), 1)
    return [
        page_cursor(AfterName("topic-1")).encode(),
        few.id_at("topic-0", 2**63),
        many.id_at("topic-0", U64_MAX),
        single_id("topic-0", 12),
    ]


# --- tokens ---


@cache
def _tokens() -> Tokens:
    settings = Settings(jwt_secret=SECRET)
    return Tokens(settings, authenticator_of(settings), lambda: NOW_S)


def read_token(data: bytes) -> None:
    with contextlib.suppress(Unauthorized):
        _tokens().authenticate({b"authorization": b"Bearer " + data})


def _claims(**more: object) -> dict[str, object]:
    return {"sub": "anna", "iss": ISSUER, "exp": 4_000_000_000, "iat": NOW_S, "role": "user", **more}


def token_seeds() -> list[bytes]:
    good = jwt.encode(_claims(), SECRET, ALGORITHM)
    return [good.encode(), jwt.encode(_claims(), "x" * 64, "HS512").encode(), good.rpartition(".")[0].encode() + b"."]


def read_claims(data: bytes) -> None:
    """A token of somebody who knows the secret, with whatever in it."""
    try:
        claims = msgspec.json.decode(data, type=dict[str, object])
        token = jwt.encode(claims, SECRET, ALGORITHM)
    except (ValueError, TypeError, RecursionError):
        return
    read_token(token.encode())


def claims_seeds() -> list[bytes]:
    odd = [
        _claims(),
        _claims(nbf=1, prefixes=["a", "b"]),
        _claims(role=None, sub=[1]),
        _claims(exp="1e5", iss={"a": 1}),
    ]
    return [json.dumps(one).encode() for one in odd] + [b'{"sub":"a","iss":"topics","exp":1e300}']


@cache
def _stream_tokens() -> StreamTokens:
    settings = Settings(api_keys=(KEY,))
    return StreamTokens(authenticator_of(settings), b"s" * 32, ManualClock())


def read_stream_token(data: bytes) -> None:
    with contextlib.suppress(TopicsError):
        bearer = _stream_tokens().bearer({b"authorization": b"Bearer " + data})
        assert bearer is None or bearer.topics == {"a", "b"}, bearer


def stream_token_seeds() -> list[bytes]:
    tokens = _stream_tokens()
    key = next(iter(tokens._keys))
    good = tokens._sign(key.digest, ["a", "b"], 4_000_000_000_000)
    return [good.encode(), good.encode().replace(b".", b""), b"st_"]
