"""`topics tail`: the end of one or more topics, from a seq or a time on, and new records."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from topics.cli.commands.completion import topic_names
from topics.cli.connection import takes_patient_client
from topics.cli.failure import NOT_SO, CommandFailed
from topics.cli.lines import Form, event_line, record_line, tombstone_json, tombstone_sentence
from topics.cli.output import Out, say
from topics.cli.spans import moment_ms

if TYPE_CHECKING:
    from topics.client import Client, Record, Tombstone

LAST_DEFAULT = 10
WINDOW_GROWTH = 8

Matches = Callable[["Record"], bool]


@takes_patient_client
def tail(
    client: Client,
    topics: Annotated[
        list[str],
        typer.Argument(help="One topic or more.", metavar="TOPIC", autocompletion=topic_names, show_default=False),
    ],
    follow: Annotated[
        bool, typer.Option("--follow/--until-end", "-f", help="Continue with new records, or stop at the end.")
    ] = False,
    last: Annotated[
        int | None,
        typer.Option("--last", "-n", help="Start with the last N records.", min=0, show_default=str(LAST_DEFAULT)),
    ] = None,
    from_seq: Annotated[
        int | None, typer.Option("--from", help="Start after this seq; 0 is the beginning.", min=0, metavar="SEQ")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Start at a time: 10m (ago), 2026-11-16T08:00Z, or ms since 1970.", metavar="TIME"),
    ] = None,
    tag: Annotated[
        str | None, typer.Option(help="Only records with this tag; `user-*` is all tags that start with user-.")
    ] = None,
    output: Annotated[
        Form, typer.Option("--output", "-o", help="NDJSON, lines to read, payloads only, or CloudEvents.")
    ] = "json",
) -> None:
    """Print the end of one or more topics, and with -f new records.

    Several topics are mixed by time, and each line names its topic (`$topic`). Lost records are reported: as a line
    {"tombstone":…} in NDJSON, otherwise on standard error.
    """
    if sum(given is not None for given in (last, from_seq, since)) > 1:
        raise CommandFailed("--last, --from and --since exclude each other")
    matches = _matcher(tag)
    topics = list(dict.fromkeys(topics))
    since_ms = None if since is None else moment_ms(since, "--since")
    with Out() as out:
        printer = Printer(out, output, several=len(topics) > 1)
        starts: dict[str, int] = {}
        ends: dict[str, int] = {}
        for topic in topics:
            state = client.state(topic)
            ends[topic], printer.epochs[topic] = state.head_seq, state.epoch
            starts[topic] = _start(client, topic, from_seq, since_ms, LAST_DEFAULT if last is None else last, matches)
        if follow:
            _follow(client, starts, matches, printer)
        else:
            _read(client, starts, ends, matches, printer)


class Printer:
    """Records and gaps in the chosen format."""

    def __init__(self, out: Out, form: Form, *, several: bool) -> None:
        self.out = out
        self._form: Form = form
        self._several = several
        # of each topic, for the ids of records that were not sent as events
        self.epochs: dict[str, int] = {}

    def record(self, topic: str, record: Record) -> None:
        if self._form == "cloudevents":
            self.out.line(event_line(record, topic, self.epochs[topic]))
            return
        self.out.line(record_line(record, self._form, topic if self._several else None))

    def gap(self, topic: str, gap: Tombstone) -> None:
        if self._form == "json":
            self.out.line(tombstone_json(gap, topic if self._several else None))
        else:
            say(tombstone_sentence(gap, topic))


def _matcher(tag: str | None) -> Matches:
    if tag is None:
        return lambda _: True
    if tag.endswith("*"):
        prefix = tag[:-1]
        return lambda record: record.tag is not None and record.tag.startswith(prefix)
    return lambda record: record.tag == tag


def _start(client: Client, topic: str, from_seq: int | None, since_ms: int | None, last: int, matches: Matches) -> int:
    """The cursor to start at."""
    from topics.client import Record

    if from_seq is not None:
        return from_seq
    if since_ms is not None:
        page = client.diff(topic, from_ts=since_ms, limit=1)
        return page.records[0].seq - 1 if page.records else page.head_seq
    state = client.state(topic)
    floor = state.earliest_seq - 1
    if last == 0:
        return state.head_seq
    # Deleted records leave holes, and a tag filter skips most records: look back in growing steps.
    window = last
    while True:
        start = max(floor, state.head_seq - window)
        found: deque[int] = deque(maxlen=last)
        for item in client.read(topic, start, to_seq=state.head_seq, include_meta=False):
            if isinstance(item, Record) and matches(item):
                found.append(item.seq)
        if len(found) == last:
            return found[0] - 1
        if start <= floor:
            return start
        window *= WINDOW_GROWTH


def _read(client: Client, starts: dict[str, int], ends: dict[str, int], matches: Matches, printer: Printer) -> None:
    from topics.client import Record

    def records(place: int, topic: str) -> Iterator[tuple[int, int, int, Record]]:
        if ends[topic] <= starts[topic]:
            return
        for item in client.read(topic, starts[topic], to_seq=ends[topic]):
            if not isinstance(item, Record):
                printer.gap(topic, item)
            elif matches(item):
                yield item.ts, place, item.seq, item

    names = list(starts)
    for _, place, _, record in heapq.merge(*(records(place, topic) for place, topic in enumerate(names))):
        printer.record(names[place], record)


def _follow(client: Client, starts: dict[str, int], matches: Matches, printer: Printer) -> None:
    """Print until interrupted, or until every topic is deleted."""
    from topics.client import Tombstone, TopicDeleted, TopicFailed

    left = set(starts)
    with client.watch(starts) as events:
        for event in events:
            for record in event.records:
                if matches(record):
                    printer.record(event.topic, record)
            match event:
                case Tombstone():
                    printer.gap(event.topic, event)
                case TopicDeleted() | TopicFailed():
                    left.discard(event.topic)
                    say(f"{event.topic}: {'was removed' if isinstance(event, TopicDeleted) else event.message}")
                case _:
                    pass
            printer.out.flush()
            if not left:
                raise CommandFailed("there is no topic left to follow", NOT_SO)
