"""Heads that a connection repeats: what they save must not be seen, whatever the bytes and however they are cut."""

import asyncio
import gc
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.http.pipe import Pipe, service_of
from tests.http.wire import chunked, get, post
from topics.http.http1.connection import Http1Connection
from topics.http.http1.known_heads import HEADS_MAX, MISSED_MAX, KnownHead
from topics.http.limits import HttpLimits
from topics.http.request import Request

KEY = b"Authorization: Bearer k3y-of-a-client"
OTHER_KEY = b"Authorization: Bearer k3y-of-another"
SMALL = HttpLimits(body_bytes_max=200, large_body_bytes=200)


@dataclass
class Served:
    """A connection without a socket, what it was asked and what it has answered."""

    keeps: bool
    limits: HttpLimits = field(default_factory=HttpLimits)
    asked: list[tuple[Any, ...]] = field(default_factory=list)
    known: int = 0

    def __post_init__(self) -> None:
        self.pipe = Pipe()
        self.service = service_of(self.limits, handle=self._handle)
        self.connection = Http1Connection(self.service)
        self.connection.connection_made(self.pipe)

    def _handle(self, request: Request) -> None:
        self.known += request.judged is not None
        what = (request.method, request.raw_path, tuple(request.path_segments), request.query)
        self.asked.append((*what, tuple(request.headers), request.has_body, request.body, request.keep_alive))
        if self.keeps:
            request.judged = "kept"
        request.reply(200, b"%d %b" % (len(self.asked), request.body))

    async def feed(self, data: bytes) -> None:
        if not self.pipe.closed:
            self.connection.data_received(data)
        for _ in range(3):
            await asyncio.sleep(0)

    @property
    def replies(self) -> bytes:
        return re.sub(rb"Date: [^\r]*", b"Date:", bytes(self.pipe.written))


def served(*reads: bytes, keeps: bool = True, limits: HttpLimits | None = None) -> Served:
    """What becomes of these reads of one connection."""

    async def run() -> Served:
        one = Served(keeps, limits or HttpLimits())
        for data in reads:
            await one.feed(data)
        return one

    return asyncio.run(run())


REQUESTS = [
    get(b"/a"),
    get(b"/a?x=1"),
    get(b"/a", KEY),
    get(b"/a", OTHER_KEY),
    get(b"/a", b"Connection: keep-alive"),
    post(b"body"),
    post(b"b" * 9),
    post(b"b" * 10),
    post(b"b" * 11),
    post(b"b" * 100),
    post(b""),
    post(b"body", KEY),
    post(b"other", KEY),
    post(b"body", OTHER_KEY),
    b"POST /x HTTP/1.1\r\n" + KEY + b"\r\nHost: a\r\ncontent-length:4\r\n\r\nbody",
    b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 0004\r\n\r\nbody",
    post(b"body", path=b"/y"),
    get(b"/a", b"X-Request-Id: 1"),
    get(b"/a", b"X-Request-Id: 2"),
    get(b"/a", b"X-Request-Id: not an id"),
    post(b"body", b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    post(b"x" * 300),
    post(b"x" * 9_000),
    chunked(b"one", b"two"),
    post(b"body", b"Expect: 100-continue"),
    b"HEAD /a HTTP/1.1\r\nHost: a\r\n\r\n",
]
ODD = [b"\r\n", b"\r", b"\n", b"P", b"PO", b"GE", b"GET ", b"POST /x", b"\0", b"body", get(b"/a", b"Connection: close")]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:stop] for start, stop in pairwise(edges) if start < stop]


Talk = tuple[list[bytes], list[bytes]]


def of_few(chosen: list[bytes]) -> st.SearchStrategy[Talk]:
    """Each of them until its head is known, then in any order, with other bytes between them."""
    after = st.lists(st.sampled_from([*chosen] * 5 + REQUESTS[:1] + ODD), min_size=1, max_size=16)
    return after.map(lambda messages: ([one for one in chosen for _ in range(4)], messages))


talks = st.lists(st.sampled_from(REQUESTS), min_size=1, max_size=3, unique=True).flatmap(of_few)


@settings(max_examples=examples(200), deadline=None)
@given(
    talk=talks,
    joined=st.lists(st.integers(0, 15), max_size=3),
    places=st.lists(st.tuples(st.integers(0, 15), st.lists(st.integers(0, 10_000), max_size=3)), max_size=4),
    limits=st.sampled_from([HttpLimits(), HttpLimits(pipelined_max=1), SMALL]),
)
@example(([post(b"body")] * 4, [b"PO", post(b"body")]), [], [], HttpLimits())
@example(([post(b"body")] * 4, [b"\r\n", post(b"body")]), [], [], HttpLimits())
@example(([post(b"body")] * 4, [post(b"x" * 300)] * 2), [], [], SMALL)
def test_a_known_head_changes_nothing_that_can_be_seen(
    talk: Talk, joined: list[int], places: list[tuple[int, list[int]]], limits: HttpLimits
) -> None:
    """The same reads on a connection that keeps heads, and on one that leaves everything to the parser."""
    cuts = dict(places)
    reads, messages = list(talk[0]), talk[1]
    for number, message in enumerate(messages):
        pieces = cut(message, cuts.get(number, []))
        if number in joined:
            reads[-1] += pieces.pop(0)
        reads += pieces
    with_heads, without = served(*reads, keeps=True, limits=limits), served(*reads, keeps=False, limits=limits)
    assert with_heads.asked == without.asked
    assert with_heads.replies == without.replies
    assert with_heads.pipe.closed == without.pipe.closed
    assert without.known == 0
    event(f"known heads: {min(with_heads.known, 5)}")


@pytest.mark.parametrize(
    "request_", [post(b"body"), post(b"body", KEY), get(), get(b"/x", KEY), post(b"body", b"Connection: keep-alive")]
)
def test_a_head_is_known_once_it_has_been_repeated(request_: bytes) -> None:
    one = served(*[request_] * 8)
    assert one.known >= 4
    assert len(set(one.asked)) == 1
    assert len(one.asked) == 8


def test_bodies_of_any_length_follow_a_known_head() -> None:
    lengths = [4, 4, 4, 4, 9, 10, 11, 99, 100, 101, 0, 1_000, 50_000]
    one = served(*[post(b"x" * length, KEY) for length in lengths])
    assert [len(asked[6]) for asked in one.asked] == lengths
    assert one.known >= len(lengths) - 4


def test_a_head_in_the_middle_of_a_method_is_not_taken_as_known() -> None:
    one = served(*[post(b"body")] * 5, b"PO", post(b"body"))
    assert len(one.asked) == 5
    assert one.replies.count(b" 400 Bad Request") == 1


def test_empty_lines_between_requests_ask_for_nothing() -> None:
    one = served(*[post(b"body")] * 5, b"\r\n", b"\r\n", post(b"last"), b"\r\n" + post(b"more"))
    assert [asked[6] for asked in one.asked] == [b"body"] * 5 + [b"last", b"more"]


def test_a_limit_for_bodies_holds_after_a_known_head() -> None:
    one = served(*[post(b"body")] * 5, post(b"x" * 201), limits=SMALL)
    assert len(one.asked) == 5
    assert one.replies.count(b" 413 ") == 1


def test_a_body_that_has_to_wait_for_its_turn_does_so_after_a_known_head() -> None:
    async def run() -> Served:
        one = Served(keeps=True, limits=HttpLimits(turn_body_bytes=200))
        for body in (b"body",) * 5:
            await one.feed(post(body))
        one.connection.data_received(post(b"x" * 201))
        assert len(one.asked) == 5
        await one.feed(post(b"body"))
        return one

    assert [len(asked[6]) for asked in asyncio.run(run()).asked] == [4] * 5 + [201, 4]


def test_a_known_head_waits_for_its_body_like_any_other() -> None:
    whole = post(b"body" * 10)
    one = served(*[whole] * 5, whole[:-3], whole[-3:], whole)
    assert len(one.asked) == 7


def test_another_key_is_another_head() -> None:
    one = served(*[post(b"body", KEY)] * 5, post(b"body", OTHER_KEY))
    keys = [dict(asked[4])[b"authorization"] for asked in one.asked]
    assert keys == [KEY.partition(b": ")[2]] * 5 + [OTHER_KEY.partition(b": ")[2]]


def everything_reachable(start: object) -> list[object]:
    found: list[object] = [start]
    seen = {id(start)}
    for holder in found:
        for value in gc.get_referents(holder):
            if id(value) not in seen and not isinstance(value, type) and type(value).__name__ != "module":
                seen.add(id(value))
                found.append(value)
    return found


def kept_heads(connection: Any) -> list[KnownHead]:
    return connection._reader._known._heads


def test_neither_key_nor_body_is_kept_with_a_head() -> None:
    body = b"the body that is not kept"
    one = served(*[post(body, KEY)] * 6)
    assert one.known
    (head,) = kept_heads(one.connection)
    texts = [value for value in everything_reachable(head) if isinstance(value, bytes)]
    assert any(b"POST /x HTTP/1.1" in text for text in texts)
    assert not [text for text in texts if body in text or b"k3y" in text]


@pytest.mark.parametrize(
    "lines",
    [
        (b"Cookie: a=b",),
        (b"X-Request-Id: always-the-same",),
        (b"Expect: nothing",),
        (b"TE: trailers",),
        (b"Upgrade: h2c",),
        (b"Authorization: a", b"Authorization: b"),
        (b"Authorization:",),
        (b"Authorization: a \t",),
        (b"X-Long: " + b"x" * 1024,),
    ],
)
def test_a_head_with_something_special_is_left_to_the_parser(lines: tuple[bytes, ...]) -> None:
    one = served(*[post(b"body", *lines)] * 6)
    assert len(one.asked) == 6
    assert one.known == 0


def test_only_a_few_heads_of_a_connection_are_kept() -> None:
    paths = [b"/%d" % number for number in range(HEADS_MAX + 2)]
    one = served(*[post(b"body", path=path) for path in paths for _ in range(4)])
    assert [asked[1] for asked in one.asked] == [path for path in paths for _ in range(4)]
    assert len(kept_heads(one.connection)) == HEADS_MAX


def test_several_heads_in_turn_are_all_known() -> None:
    turn = [post(b"claim", path=b"/claim"), post(b"ack", path=b"/ack"), get(b"/state")]
    assert served(*turn * 8).known >= 3 * 5


def test_a_client_that_sends_no_head_twice_is_soon_looked_at_only_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bytes] = []
    monkeypatch.setattr("topics.http.http1.known_heads._push", lambda _, item: kept.append(item))
    requests = [post(b"body", b"X-Request-Id: %d" % number) for number in range(20 * MISSED_MAX)]
    one = served(*requests)
    assert len(one.asked) == len(requests)
    assert len(kept) < 3 * MISSED_MAX
