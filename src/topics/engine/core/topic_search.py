"""Topics by part of their name, by type, by size: pages in any order, found in steps, as there may be very many."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Final, NamedTuple, get_args

import msgspec

from topics.engine.core.state import State
from topics.engine.core.waiting.runner import Steps
from topics.engine.log.topic import Topic
from topics.model.cursors import page_cursor, place_of
from topics.model.errors import InvalidRequest
from topics.model.names import TopicOrder

NAMES_PER_STEP = 2_000
ORDERS: Final[tuple[TopicOrder, ...]] = get_args(TopicOrder)

_VALUES: Final[Mapping[str, Callable[[Topic], int]]] = {
    "records": lambda topic: topic.count,
    "bytes": lambda topic: topic.bytes,
    "written": lambda topic: topic.last_write_ts or 0,
}


class TopicQuery(NamedTuple):
    """Which topics: names that start so and contain this, of a type; with one of the prefixes that the key may use."""

    prefix: str
    contains: str
    type: str | None
    prefixes: tuple[str, ...]

    def check(self) -> None:
        if self.type not in (None, "log", "queue"):
            raise InvalidRequest("type must be log or queue", field="type")

    def wants(self, topic: Topic) -> bool:
        return (
            topic.name.startswith(self.prefixes)
            and self.contains in topic.name.lower()
            and self.type in (None, topic.config.type)
        )


class TopicPlace(msgspec.Struct):
    """The place in a sorted list of topics."""

    value: int
    name: str


Entry = tuple[int, str]


def order_of(text: str) -> TopicOrder:
    for order in ORDERS:
        if order == text:
            return order
    raise InvalidRequest(f"sort must be one of {', '.join(ORDERS)}", field="sort")


def search(
    state: State, query: TopicQuery, order: TopicOrder, cursor: str | None, page_size: int
) -> Steps[tuple[list[Topic], str | None]]:
    """A page of topics and the cursor of the next one."""
    after = ("", 0) if cursor is None else _after(cursor)
    names = (
        yield from _by_name(state, query, after[0], page_size)
        if order == "name"
        else _sorted(state, query, order, None if cursor is None else (after[1], after[0]), page_size)
    )
    shown = [entry for entry in names[:page_size] if entry[1] in state.by_name]
    more = len(names) > page_size
    next_cursor = page_cursor(TopicPlace(*names[page_size - 1])) if more else None
    return [state.by_name[name] for _, name in shown], next_cursor


def _after(cursor: str) -> tuple[str, int]:
    place = place_of(cursor, TopicPlace)
    return place.name, place.value


def _by_name(state: State, query: TopicQuery, after: str, page_size: int) -> Steps[list[Entry]]:
    found: list[Entry] = []
    while True:
        names = state.names
        index = max(bisect_right(names, after), bisect_left(names, query.prefix))
        for name in names[index : index + NAMES_PER_STEP]:
            if not name.startswith(query.prefix):
                return found
            if query.wants(state.by_name[name]):
                found.append((0, name))
                if len(found) > page_size:
                    return found
            after = name
        if index + NAMES_PER_STEP >= len(names):
            return found
        yield None


def _sorted(
    state: State, query: TopicQuery, order: TopicOrder, after: Entry | None, page_size: int
) -> Steps[list[Entry]]:
    """The first ones after a place by a value, then by name; the lowest value first unless the order has a minus."""
    value = _VALUES[order.lstrip("-")]
    sign = -1 if order.startswith("-") else 1
    best: list[Entry] = []
    last = ""
    while True:
        names = state.names
        index = max(bisect_right(names, last), bisect_left(names, query.prefix))
        piece = names[index : index + NAMES_PER_STEP]
        topics = (state.by_name[name] for name in piece if name.startswith(query.prefix))
        entries = ((sign * value(topic), topic.name) for topic in topics if query.wants(topic))
        best = heapq.nsmallest(
            page_size + 1, chain(best, (entry for entry in entries if after is None or entry > after))
        )
        if len(piece) < NAMES_PER_STEP or not piece[-1].startswith(query.prefix):
            return best
        last = piece[-1]
        yield None
