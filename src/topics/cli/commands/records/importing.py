"""`topics import`: the output of `topics export`, appended batch by batch; interrupted or repeated, nothing doubles.

    FILE ── batch ── batch ── batch ──▶        batches are split by count and bytes: the same file, the same batches
                     ▲ offset                  FILE.importing.json has the start of the next one; saved after each reply
                                               FILE.imported.json lists the topics that have all of it

A batch carries a key made of the run and its offset. A resumed import sends the batch at `offset` again with the same
key: if it was appended before, the server says so. When the server may have forgotten the key (it keeps keys for the
topic's window), the topic itself is read: a batch is there complete and in order, after the last one, or not at all.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Annotated, NamedTuple
from uuid import uuid4

import msgspec
import typer
from msgspec import UNSET, Raw, UnsetType

from topics.cli.commands.completion import topic_names
from topics.cli.connection import takes_patient_client
from topics.cli.failure import NOT_SO, CommandFailed
from topics.cli.output import print_json, say
from topics.cli.progress import progress

if TYPE_CHECKING:
    from topics.client import Client, TopicState

BATCH_RECORDS_DEFAULT = 1_000
BATCH_RECORDS_MAX = 10_000
BATCH_BYTES_MAX = 1 << 20
READ_BYTES = 1 << 20
# How much earlier than the server says a key counts as forgotten: differences of clocks, and network delay.
WINDOW_MARGIN_MS = 10_000
MARK_BYTES = 256

_encode = msgspec.json.Encoder().encode


class Notes(msgspec.Struct, kw_only=True):
    """How far an import has come; `mark` is what stands before `offset`, to know the file again."""

    topic: str
    run: str
    size_bytes: int
    batch_records: int
    offset: int = 0
    line: int = 0
    records: int = 0
    mark: bytes = b""
    # of the topic: 0 until it is known to exist
    epoch: int = 0
    first_seq: int = 0
    last_seq: int = 0
    saved_ms: int = 0


class Finished(msgspec.Struct, kw_only=True):
    """An import that came to its end. Another server, another topic or one that was made anew has none of it."""

    url: str
    topic: str
    epoch: int
    first_seq: int
    last_seq: int
    records: int
    lines: int
    size_bytes: int
    mark: bytes


class LineBatch(NamedTuple):
    """Records that are appended together, and where the file continues after them."""

    records: list[bytes]
    offset: int
    line: int
    mark: bytes


class _Line(msgspec.Struct):
    """A line of an export, or the same without `$`."""

    data: Raw | UnsetType = UNSET
    tag: str | None = None
    node: str | None = None
    meta: Raw | UnsetType = UNSET
    tag_read: str | None = msgspec.field(name="$tag", default=None)
    node_read: str | None = msgspec.field(name="$node", default=None)
    tombstone: Raw | UnsetType = UNSET
    end: Raw | UnsetType = UNSET


_decode_line = msgspec.json.Decoder(_Line).decode


@takes_patient_client
def import_(
    client: Client,
    topic: Annotated[
        str, typer.Argument(help="The topic; created if it is missing.", metavar="TOPIC", autocompletion=topic_names)
    ],
    file: Annotated[str, typer.Argument(help="Lines of NDJSON; - is standard input.", metavar="FILE")] = "-",
    batch: Annotated[
        int, typer.Option(help="Records in one append.", min=1, max=BATCH_RECORDS_MAX)
    ] = BATCH_RECORDS_DEFAULT,
    from_line: Annotated[
        int | None, typer.Option(help="Start over at this line, whatever an earlier run did.", min=1)
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Import all of it once more, whatever an earlier run did.")
    ] = False,
    create: Annotated[bool, typer.Option("--create/--no-create", help="Create the topic if it is missing.")] = True,
) -> None:
    """Append the output of `topics export`; run again, it resumes, or does nothing if it was complete.

    A line is {"data":…} with tag, node and meta, as `export` writes them ($tag, $node) or without the $. Records get
    new seqs and times. FILE.importing.json stores the progress, FILE.imported.json that it is complete; standard input
    has neither.
    """
    if again and from_line is not None:
        raise CommandFailed("--again and --from-line exclude each other")
    if file == "-":
        notes = Notes(topic=topic, run=uuid4().hex, size_bytes=0, batch_records=batch)
        _run(client, notes, sys.stdin.buffer, None, create)
        return
    try:
        with open(file, "rb", buffering=READ_BYTES) as source:
            path = f"{file}.importing.json"
            begin_line = 1 if again else from_line
            if begin_line is None and not os.path.exists(path) and _is_finished(client, file, source, topic):
                return
            notes = _notes(client, source, path, topic, batch, begin_line)
            _run(client, notes, source, path, create)
            _finish(client, file, source, notes)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
    except OSError as error:
        raise CommandFailed(f"cannot use {error.filename}: {error.strerror}") from None


def _run(client: Client, notes: Notes, source: IO[bytes], path: str | None, create: bool) -> None:
    total = notes.size_bytes or None
    try:
        with progress(f"import {notes.topic}", total, "bytes", notes.offset) as step:
            for batch in _batches(source, notes):
                step(batch.offset - notes.offset)
                appended = client.append_many(
                    *(notes.topic, b"[" + b",".join(batch.records) + b"]"),
                    idempotency_key=f"import:{notes.run}:{notes.offset}",
                    create=create,
                )
                notes.first_seq = notes.first_seq or appended.first_seq
                _advance(notes, batch, appended.last_seq)
                if not notes.epoch:
                    notes.epoch = client.state(notes.topic, touch=False).epoch
                _save(notes, path)
    except KeyboardInterrupt:
        if path is not None:
            say(f"interrupted after {notes.records} records; run the same command to resume")
        raise
    shown = {"topic": notes.topic, "records": notes.records}
    print_json(shown | {"first_seq": notes.first_seq, "last_seq": notes.last_seq})


def _advance(notes: Notes, batch: LineBatch, last_seq: int) -> None:
    notes.offset, notes.line, notes.mark = batch.offset, batch.line, batch.mark
    notes.records += len(batch.records)
    notes.last_seq = last_seq


# --- lines ---


def _batches(source: IO[bytes], notes: Notes) -> Iterator[LineBatch]:
    """Batches from `notes.offset` on; where they are split depends on the file alone."""
    records: list[bytes] = []
    size, offset, line = 0, notes.offset, notes.line
    mark = notes.mark
    for text in source:
        offset += len(text)
        line += 1
        mark = text[-MARK_BYTES:]
        record = _record(text, line, notes)
        if record is not None:
            records.append(record)
            size += len(record)
        if len(records) >= notes.batch_records or size >= BATCH_BYTES_MAX:
            yield LineBatch(records, offset, line, mark)
            records, size = [], 0
    if records:
        yield LineBatch(records, offset, line, mark)


def _record(text: bytes, number: int, notes: Notes) -> bytes | None:
    """A line as a record of an append, with its payload unchanged; None if there is nothing to append."""
    if not text.strip():
        return None
    try:
        line = _decode_line(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if not text.endswith(b"\n"):
            raise CommandFailed(f"line {number} is truncated: the file is incomplete{_way_on(notes)}", NOT_SO) from None
        raise CommandFailed(f"line {number} cannot be imported: {error}{_way_on(notes)}") from None
    if isinstance(line.tombstone, Raw):
        say(f"line {number} is a gap: these records were already lost when the export was made")
        return None
    if isinstance(line.end, Raw) and line.data is UNSET:
        return None
    if not isinstance(line.data, Raw):
        raise CommandFailed(f"line {number} has no data{_way_on(notes)}")
    pieces = [b'{"data":', line.data]
    for name, value in ((b"tag", line.tag_read or line.tag), (b"node", line.node_read or line.node)):
        if value is not None:
            pieces.append(b',"%b":%b' % (name, _encode(value)))
    if isinstance(line.meta, Raw):
        pieces += [b',"meta":', line.meta]
    pieces.append(b"}")
    return b"".join(pieces)


def _way_on(notes: Notes) -> str:
    """The way out for a line that cannot be imported: continue after it, or use another command."""
    if not notes.records:
        return "; lines that are payloads themselves are for `topics append TOPIC --file FILE`"
    return f"; {notes.records} records were imported: fix the file, then continue with --from-line {notes.line + 1}"


# --- resuming ---


def _notes(client: Client, source: IO[bytes], path: str, topic: str, batch: int, from_line: int | None) -> Notes:
    """The notes of the interrupted run, or new ones."""
    size_bytes = os.fstat(source.fileno()).st_size
    fresh = Notes(topic=topic, run=uuid4().hex, size_bytes=size_bytes, batch_records=batch)
    state = _state(client, topic)
    if from_line is None and (notes := _read(path)) is not None:
        _check(notes, fresh, source, state, path)
        source.seek(notes.offset)
        _skip_what_is_there(client, notes, source, state)
        source.seek(notes.offset)
        say(f"resuming at line {notes.line + 1}, after {notes.records} records")
        return notes
    if state is not None:
        fresh.epoch, fresh.last_seq = state.epoch, state.head_seq
    for _ in range((from_line or 1) - 1):
        text = source.readline()
        fresh.offset += len(text)
        fresh.line += 1
        fresh.mark = text[-MARK_BYTES:]
    _save(fresh, path)
    return fresh


def _is_finished(client: Client, file: str, source: IO[bytes], topic: str) -> bool:
    """Whether the topic has all of the file already; if so, say it."""
    state = _state(client, topic)
    finished = _finished(file).get(_name(client, topic))
    if finished is None or state is None or state.epoch != finished.epoch or state.head_seq < finished.last_seq:
        return False
    source.seek(max(0, finished.size_bytes - len(finished.mark)))
    was_there = source.read(len(finished.mark)) == finished.mark
    size_bytes = source.seek(0, os.SEEK_END)
    source.seek(0)
    if not was_there or size_bytes < finished.size_bytes:
        return False  # another file of that name
    if size_bytes > finished.size_bytes:
        raise CommandFailed(
            f"{file} was imported into {topic} and has grown since; --from-line {finished.lines + 1} imports what was "
            "added, --again all of it",
            NOT_SO,
        )
    seqs = f", seqs {finished.first_seq} to {finished.last_seq}" if finished.records else ""
    say(f"{file} was imported into {topic} before ({finished.records} records{seqs}); --again imports it once more")
    return True


def _finish(client: Client, file: str, source: IO[bytes], notes: Notes) -> None:
    size_bytes = source.seek(0, os.SEEK_END)
    source.seek(max(0, size_bytes - MARK_BYTES))
    done = Finished(
        url=client.url,
        topic=notes.topic,
        epoch=notes.epoch,
        first_seq=notes.first_seq,
        last_seq=notes.last_seq,
        records=notes.records,
        lines=notes.line,
        size_bytes=size_bytes,
        mark=source.read(),
    )
    others = [one for name, one in _finished(file).items() if name != _name(client, notes.topic)]
    _replace(f"{file}.imported.json", [*others, done])


def _finished(file: str) -> dict[tuple[str, str], Finished]:
    """The content of FILE.imported.json, by server and topic."""
    path = f"{file}.imported.json"
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as stored:
        try:
            found = msgspec.json.decode(stored.read(), type=list[Finished])
        except msgspec.DecodeError:
            raise CommandFailed(f"{path} cannot be read; remove it to forget what was imported", NOT_SO) from None
        return {(one.url, one.topic): one for one in found}
    return {}


def _name(client: Client, topic: str) -> tuple[str, str]:
    return client.url, topic


def _check(notes: Notes, fresh: Notes, source: IO[bytes], state: TopicState | None, path: str) -> None:
    """Refuse to resume with another file, another topic, or a topic that was replaced."""
    wrong = ""
    source.seek(max(0, notes.offset - len(notes.mark)))
    if notes.topic != fresh.topic:
        wrong = f"the topic was {notes.topic}"
    elif notes.size_bytes != fresh.size_bytes or source.read(len(notes.mark)) != notes.mark:
        wrong = "the file has changed"
    elif notes.epoch and (state is None or state.epoch != notes.epoch):
        wrong = "the topic was removed meanwhile"
    if wrong:
        raise CommandFailed(f"an import of this file was interrupted, but {wrong}; remove {path} to start over", NOT_SO)


def _skip_what_is_there(client: Client, notes: Notes, source: IO[bytes], state: TopicState | None) -> None:
    """Skip batches that were appended but got no reply, if the server may have forgotten their keys."""
    window_ms = 0 if state is None else state.config.idempotency_window_ms - WINDOW_MARGIN_MS
    if state is None or state.head_seq <= notes.last_seq or _now_ms() - notes.saved_ms < window_ms:
        return
    for batch in _batches(source, notes):
        last_seq = _last_seq_of(client, notes, batch)
        if last_seq is None:
            return
        _advance(notes, batch, last_seq)


def _last_seq_of(client: Client, notes: Notes, batch: LineBatch) -> int | None:
    """The last seq of the batch, if the topic has all of it in order."""
    from topics.client import Record

    wanted = [_key(record) for record in batch.records]
    seen: deque[tuple[int, tuple[object, ...]]] = deque(maxlen=len(wanted))
    for item in client.read(notes.topic, notes.last_seq):
        if not isinstance(item, Record):
            shown = f"records after seq {notes.last_seq} are lost, so it is unknown whether line {notes.line + 1}"
            raise CommandFailed(f"{shown} and those after it were appended; choose with --from-line", NOT_SO)
        if seen and item.seq != seen[-1][0] + 1:
            seen.clear()
        seen.append((item.seq, (item.raw, item.tag, item.node, item.meta)))
        if len(seen) == len(wanted) and all(key == want for (_, key), want in zip(seen, wanted, strict=True)):
            return item.seq
    return None


def _key(record: bytes) -> tuple[object, ...]:
    line = _decode_line(record)
    assert isinstance(line.data, Raw)
    meta = msgspec.json.decode(line.meta) if isinstance(line.meta, Raw) else None
    return bytes(line.data), line.tag, line.node, meta


def _state(client: Client, topic: str) -> TopicState | None:
    from topics.client import TopicNotFound

    try:
        return client.state(topic, touch=False)
    except TopicNotFound:
        return None


def _read(path: str) -> Notes | None:
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        try:
            return msgspec.json.decode(file.read(), type=Notes)
        except msgspec.DecodeError:
            raise CommandFailed(f"{path} cannot be read; remove it to start over", NOT_SO) from None
    return None


def _save(notes: Notes, path: str | None) -> None:
    if path is None:
        return
    notes.saved_ms = _now_ms()
    _replace(path, notes)


def _replace(path: str, value: Notes | list[Finished]) -> None:
    """Written to another file and renamed: after a kill there are the old notes or the new ones."""
    with open(f"{path}.new", "wb") as file:
        file.write(_encode(value))
    os.replace(f"{path}.new", path)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
