"""`topics append`: records from arguments, from files, or from standard input as they arrive."""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import time
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from topics.cli.commands.completion import topic_names
from topics.cli.connection import takes_patient_client
from topics.cli.failure import CommandFailed
from topics.cli.output import print_json, say
from topics.cli.progress import Step, progress
from topics.cli.spans import span_ms

if TYPE_CHECKING:
    from topics.client import Appended, Client

BATCH_RECORDS_MAX = 1_000
BATCH_BYTES_MAX = 1 << 20
READ_BYTES = 1 << 18
LINGER_S = 0.02
SHOWN_CHARS_MAX = 40

# How the server names a record of the request.
_RECORD_PLACE = re.compile(r"records\[(\d+)\]")
_encode = msgspec.json.Encoder().encode
_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode


class LineRecords:
    """What all records of one run share, and how a line becomes a payload."""

    def __init__(self, *, text: bool, events: bool, fields: dict[str, Any]) -> None:
        self._text = text
        self._events = events
        if events and fields["meta"] is not None:
            raise CommandFailed("--meta is not for --cloudevents: the attributes of an event are its meta")
        # The end of a record: `,"tag":…}`, the same for all.
        rest = _encode({name: value for name, value in fields.items() if value is not None})
        self._rest = b"," + rest[1:] if len(rest) > 2 else b"}"

    def record(self, line: bytes, where: str) -> bytes:
        if self._events:
            return self._event(line, where)
        return b'{"data":%b%b' % (self._payload(line, where), self._rest)

    def _event(self, line: bytes, where: str) -> bytes:
        """A CloudEvent: its attributes are the meta of the record."""
        from topics.client import TopicsError
        from topics.model.cloudevents.events_in import event_record

        try:
            record = event_record(line)
        except TopicsError as error:
            raise CommandFailed(f"{where}: {error.message}") from None
        return b'{"data":%b,"meta":%b%b' % (record.data, record.meta or b"null", self._rest)

    def _payload(self, line: bytes, where: str) -> bytes:
        """JSON unchanged, byte for byte; with --text anything, as a string."""
        try:
            text = line.decode()
        except UnicodeDecodeError:
            raise CommandFailed(f"{where} is not UTF-8; encode it, e.g. as base64, and note that in --meta") from None
        if self._text:
            return _encode(text)
        try:
            return bytes(_decode_raw(line))
        except (msgspec.DecodeError, RecursionError) as error:
            shown = text if len(text) <= SHOWN_CHARS_MAX else text[: SHOWN_CHARS_MAX - 1] + "…"
            raise CommandFailed(f"{where} is not valid JSON ({error}): {shown}; --text appends it as text") from None


Node = Annotated[str | None, typer.Option(help="The origin of the records; readers of that node do not get them.")]
Delay = Annotated[str | None, typer.Option(help="Queue: delay before the job can be claimed.", metavar="SPAN")]
UniqueKey = Annotated[str | None, typer.Option(help="Queue: append only if no job with this key is pending.")]
IdempotencyKey = Annotated[
    str | None, typer.Option(help="Append once, however often this runs within the topic's window. Not for stdin.")
]
Group = Annotated[str | None, typer.Option(help="Queue: the job group, with name, size and notify.", metavar="JSON")]


@takes_patient_client
def append(
    client: Client,
    topic: Annotated[
        str, typer.Argument(help="The topic; created by its first record.", metavar="TOPIC", autocompletion=topic_names)
    ],
    payloads: Annotated[
        list[str] | None, typer.Argument(help="One record each, appended together or not at all.", metavar="DATA")
    ] = None,
    files: Annotated[
        list[str] | None, typer.Option("--file", "-f", help="Read records from this file, one per line; repeatable.")
    ] = None,
    tag: Annotated[str | None, typer.Option(help="The tag of each record.")] = None,
    node: Node = None,
    meta: Annotated[str | None, typer.Option(help="Headers for each record, a JSON object.", metavar="JSON")] = None,
    delay: Delay = None,
    unique_key: UniqueKey = None,
    job_priority: Annotated[int | None, typer.Option(help="Queue: higher ones come first.", min=0, max=9)] = None,
    group: Group = None,
    idempotency_key: IdempotencyKey = None,
    rate: Annotated[float | None, typer.Option(help="At most this many records per second.", min=0.001)] = None,
    text: Annotated[bool, typer.Option("--text", help="Treat each record as text, even if it is JSON.")] = False,
    cloudevents: Annotated[
        bool, typer.Option("--cloudevents", help="Treat each record as a CloudEvent, JSON.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Treat each record as JSON: the default.")] = False,
    create: Annotated[bool, typer.Option("--create/--no-create", help="Create the topic if it is missing.")] = True,
) -> None:
    """Append records: arguments, lines of files, or lines of standard input.

    A record is JSON (a text in double quotes), or any line with --text. A line that is not valid is reported by its
    number, with exit code 2, and nothing of its batch is appended: all arguments, up to 1,000 lines of a file, or the
    lines of standard input that arrived with it. At the end one line of JSON shows the seqs of the records.
    """
    if text + json + cloudevents > 1:
        raise CommandFailed("--text, --json and --cloudevents exclude each other")
    if payloads and files:
        raise CommandFailed("records come from arguments or from files, not both")
    delay_ms = None if delay is None else span_ms(delay, "--delay")
    fields = {
        "tag": tag,
        "meta": _object(meta, "--meta", '{"trace":"abc"}'),
        "delay_ms": delay_ms,
        "unique_key": unique_key,
    }
    fields["job_priority"] = job_priority
    fields["group"] = _object(group, "--group", '{"name":"batch-7","size":100,"notify":"batches"}')
    request = LineRecords(text=text, events=cloudevents, fields=fields)
    sender = Sender(client, topic, node, create, idempotency_key, rate)
    if not payloads and not files and idempotency_key is not None:
        raise CommandFailed("--idempotency-key needs arguments or files: standard input is split into batches by time")
    with sender.telling_how_far():
        if payloads:
            _send_arguments(sender, request, payloads, together=rate is None)
        elif files:
            _send_files(sender, request, files)
        else:
            _send_stdin(sender, request)
    sender.report()


class Sender:
    """Sends batches to one topic, at the given rate, and counts them."""

    def __init__(
        self, client: Client, topic: str, node: str | None, create: bool, key: str | None, rate: float | None
    ) -> None:
        self._client = client
        self._topic = topic
        self._node = node
        self._create = create
        self._key = key
        self._rate = rate
        self._next_s = 0.0
        self._batches = 0
        self._first: Appended | None = None
        self._last: Appended | None = None
        self.records = 0
        self.deduped = 0
        # of the batch that is being sent: the origin of each record, for errors
        self._places: list[str] = []
        self.batch_records_max = BATCH_RECORDS_MAX if rate is None else max(1, min(BATCH_RECORDS_MAX, int(rate / 10)))

    def send(self, records: list[bytes], places: list[str]) -> None:
        self._places = places
        if self._rate is not None:
            # Lost time is not made up for: the rate is a limit at any moment.
            time.sleep(max(0.0, self._next_s - time.monotonic()))
            self._next_s = time.monotonic() + len(records) / self._rate
        key = self._key if self._key is None or self._batches == 0 else f"{self._key}:{self._batches}"
        appended = self._client.append_many(
            *(self._topic, b"[" + b",".join(records) + b"]"), node=self._node, create=self._create, idempotency_key=key
        )
        self._batches += 1
        self.records += len(records)
        self.deduped += len(records) if appended.deduped else 0
        self._first = self._first or appended
        self._last = appended

    @contextlib.contextmanager
    def telling_how_far(self) -> Generator[None]:
        """An error names the line instead of its index in a batch; in any case the result so far is printed."""
        from topics.client import TopicsError

        try:
            yield
        except TopicsError as error:
            if (found := _RECORD_PLACE.match(error.message)) and int(found[1]) < len(self._places):
                error.message = self._places[int(found[1])] + error.message[found.end() :]
            self._tell_how_far()
            raise
        except (CommandFailed, KeyboardInterrupt):
            self._tell_how_far()
            raise

    def _tell_how_far(self) -> None:
        if self._last is not None:
            say(f"{self.records} records were appended before this, up to seq {self._last.last_seq}")

    def report(self) -> None:
        if self._first is None or self._last is None:
            say("nothing to append")
            return
        facts = {"topic": self._topic, "records": self.records, "first_seq": self._first.first_seq}
        facts |= {"last_seq": self._last.last_seq, "created": self._first.created, "deduped": self.deduped}
        print_json(facts)


def _send_arguments(sender: Sender, request: LineRecords, payloads: list[str], *, together: bool) -> None:
    places = [f"record {number}" for number in range(1, len(payloads) + 1)]
    records = [request.record(os.fsencode(payload), place) for payload, place in zip(payloads, places, strict=True)]
    if together:
        sender.send(records, places)
        return
    for record, place in zip(records, places, strict=True):
        sender.send([record], [place])


def _send_files(sender: Sender, request: LineRecords, paths: list[str]) -> None:
    try:
        total = sum(os.path.getsize(path) for path in paths)
        with progress("append", total, "bytes") as step:
            for path in paths:
                with open(path, "rb", buffering=READ_BYTES) as file:
                    _send_lines(sender, request, file, path, step)
    except OSError as error:
        raise CommandFailed(f"cannot read {error.filename}: {error.strerror}") from None


def _send_lines(sender: Sender, request: LineRecords, lines: Any, path: str, step: Step) -> None:
    batch: list[bytes] = []
    places: list[str] = []
    size = read = 0
    for number, line in enumerate(lines, 1):
        read += len(line)
        if stripped := line.strip():
            places.append(f"{path}, line {number}")
            batch.append(request.record(stripped, places[-1]))
            size += len(batch[-1])
        if len(batch) >= sender.batch_records_max or size >= BATCH_BYTES_MAX:
            sender.send(batch, places)
            step(read)
            batch, places, size, read = [], [], 0, 0
    if batch:
        sender.send(batch, places)
    step(read)


def _send_stdin(sender: Sender, request: LineRecords) -> None:
    typed = sys.stdin.isatty()
    if typed:
        say("one record per line; Ctrl-D ends")
    # A bar would be drawn over the user's input.
    with contextlib.nullcontext(_nothing) if typed else progress("append", None) as step:
        for batch in _stdin_batches(sender.batch_records_max):
            places = [f"line {number}" for number, _ in batch]
            records = [request.record(line, place) for (_, line), place in zip(batch, places, strict=True)]
            sender.send(records, places)
            step(len(records))


def _nothing(_: int) -> None:
    pass


def _stdin_batches(records_max: int) -> Iterator[list[tuple[int, bytes]]]:
    """The lines that have arrived by now, each with its number, without waiting for a full batch."""
    source = sys.stdin.fileno()
    # select() does not support high file numbers.
    ready = select.poll()
    ready.register(source, select.POLLIN)
    batch: list[tuple[int, bytes]] = []
    rest = b""
    number, size, ended = 0, 0, False
    while not ended:
        readable = not batch or bool(ready.poll(LINGER_S * 1000))
        piece = os.read(source, READ_BYTES) if readable else b""
        ended = readable and not piece
        *lines, rest = (rest + piece).split(b"\n")
        if ended and rest:
            lines.append(rest)
        for number, line in enumerate(lines, number + 1):  # noqa: B020 - goes on counting
            if stripped := line.strip():
                batch.append((number, stripped))
                size += len(stripped)
            if len(batch) >= records_max or size >= BATCH_BYTES_MAX:
                yield batch
                batch, size = [], 0
        if batch and (ended or not readable):
            yield batch
            batch, size = [], 0


def _object(text: str | None, option: str, example: str) -> Any:
    if text is None:
        return None
    try:
        found = msgspec.json.decode(text, type=msgspec.Raw)
    except msgspec.DecodeError as error:
        raise CommandFailed(f"{option} is not valid JSON ({error})") from None
    if not bytes(found).startswith(b"{"):
        raise CommandFailed(f"{option} must be a JSON object like {example}")
    return found
