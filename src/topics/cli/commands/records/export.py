"""`topics export`: a topic as NDJSON; into a file that is complete or absent, resumed where it was interrupted.

FILE.partial        lines as they arrive
FILE.partial.json   topic, epoch and bounds of the export; another export does not continue it
FILE                complete; the other two are removed
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Annotated

import msgspec
import typer

from topics.cli.commands.completion import topic_names
from topics.cli.connection import takes_patient_client
from topics.cli.failure import NOT_SO, CommandFailed
from topics.cli.output import say, write_out
from topics.cli.progress import progress
from topics.cli.spans import moment_ms

if TYPE_CHECKING:
    from topics.client import Client

LAST_LINE_BYTES = 64 << 10


class Plan(msgspec.Struct, kw_only=True):
    """The bounds of an export; fixed when it begins, so that a resumed one has the same."""

    topic: str
    epoch: int
    from_seq: int
    to_seq: int
    meta: bool


class _Line(msgspec.Struct):
    seq: int = msgspec.field(name="$seq", default=0)
    tombstone: dict[str, object] | None = None


@takes_patient_client
def export(
    client: Client,
    topic: Annotated[
        str, typer.Argument(help="The topic.", metavar="TOPIC", autocompletion=topic_names, show_default=False)
    ],
    file: Annotated[str, typer.Argument(help="The file to write; - is standard output.", metavar="FILE")] = "-",
    from_seq: Annotated[
        int, typer.Option("--from", help="Start after this seq; 0 is the beginning.", min=0, metavar="SEQ")
    ] = 0,
    since: Annotated[
        str | None,
        typer.Option(help="Start at a time: 10m (ago), 2026-11-16T08:00Z, or ms since 1970.", metavar="TIME"),
    ] = None,
    to_seq: Annotated[
        int | None, typer.Option("--to", help="The last seq; the head at the start if not given.", min=0, metavar="SEQ")
    ] = None,
    meta: Annotated[bool, typer.Option("--meta/--no-meta", help="Include the records' headers.")] = True,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file, and start over.")] = False,
) -> None:
    """Write a topic as NDJSON, to standard output or to a file that can be resumed.

    One record per line, as the server shows it, with its tag; a gap is a line {"tombstone":…}. FILE appears when it is
    complete; until then it is FILE.partial, and running the same command again resumes it.
    """
    state = client.state(topic)
    if since is not None:
        page = client.diff(topic, from_ts=moment_ms(since, "--since"), limit=1)
        from_seq = max(from_seq, page.records[0].seq - 1 if page.records else page.head_seq)
    end = state.head_seq if to_seq is None else min(to_seq, state.head_seq)
    plan = Plan(topic=topic, epoch=state.epoch, from_seq=from_seq, to_seq=end, meta=meta)
    if file == "-":
        _copy(client, plan, plan.from_seq, write_out)
        sys.stdout.buffer.flush()
        return
    if os.path.exists(file) and not force:
        raise CommandFailed(f"{file} exists; --force replaces it")
    before = None if force else _read_notes(f"{file}.partial.json")
    if before is not None:
        # An end that was not given is the head at the start of the export.
        plan.from_seq = plan.from_seq if since is None else before.from_seq
        plan.to_seq = plan.to_seq if to_seq is not None else before.to_seq
    _to_file(client, plan, before, file)


def _to_file(client: Client, plan: Plan, before: Plan | None, file: str) -> None:
    partial, notes = f"{file}.partial", f"{file}.partial.json"
    if before is not None and os.path.exists(partial):
        if before != plan:
            raise CommandFailed(
                f"{partial} is part of another export ({_difference(before, plan)}); "
                "remove it, or start over with --force",
                NOT_SO,
            )
    else:
        with open(notes, "wb") as written:
            written.write(msgspec.json.encode(plan))
        with open(partial, "wb"):
            pass
    try:
        with open(partial, "r+b") as out:
            position = _cut_to_whole_lines(out, plan.from_seq)
            if position > plan.from_seq:
                say(f"resuming after seq {position}")
            _copy(client, plan, position, out.write)
            out.flush()
            os.fsync(out.fileno())
    except OSError as error:
        raise CommandFailed(
            f"cannot write {partial}: {error.strerror}; the partial export can be resumed", NOT_SO
        ) from None
    os.replace(partial, file)
    os.unlink(notes)


def _copy(client: Client, plan: Plan, position: int, write: Callable[[bytes], object]) -> None:
    """Everything after `position`; the progress counts seqs, because the number of records is not known before."""
    if position >= plan.to_seq:
        return
    with (
        progress(f"export {plan.topic}", plan.to_seq - plan.from_seq, done=position - plan.from_seq) as step,
        client.export(plan.topic, position, plan.to_seq, include_meta=plan.meta) as chunks,
    ):
        for chunk in chunks:
            write(chunk)
            if b'{"tombstone":' in chunk:
                _tell_gaps(plan.topic, chunk)
            reached = min(chunks.from_seq, plan.to_seq)
            step(max(0, reached - position))
            position = max(position, reached)
    assert chunks.end is not None
    if chunks.end.epoch != plan.epoch:
        raise CommandFailed(
            f"topic {plan.topic} was deleted and created again meanwhile; start over with --force", NOT_SO
        )


def _tell_gaps(topic: str, chunk: bytes) -> None:
    for line in chunk.splitlines():
        if line.startswith(b'{"tombstone":'):
            gap = msgspec.json.decode(line)["tombstone"]
            say(f"{topic}: records {gap['gap_from']} to {gap['gap_to']} are gone ({gap['reason']})")


def _cut_to_whole_lines(out: IO[bytes], from_seq: int) -> int:
    """Cut an incomplete line, go to the end, and return the position of the file."""
    size = out.seek(0, os.SEEK_END)
    reach = LAST_LINE_BYTES
    while True:
        start = max(0, size - reach)
        out.seek(start)
        tail = out.read(size - start)
        end = tail.rfind(b"\n")
        line_start = tail.rfind(b"\n", 0, end) + 1 if end >= 0 else 0
        if start == 0 or line_start > 0:
            break
        reach *= 8
    out.truncate(start + end + 1)
    out.seek(start + end + 1)
    if end < 0:
        return from_seq
    line = msgspec.json.decode(tail[line_start:end], type=_Line)
    return int(str(line.tombstone["gap_to"])) if line.tombstone is not None else line.seq


def _read_notes(path: str) -> Plan | None:
    with contextlib.suppress(OSError, msgspec.DecodeError), open(path, "rb") as file:
        return msgspec.json.decode(file.read(), type=Plan)
    return None


def _difference(before: Plan, now: Plan) -> str:
    then, since = msgspec.to_builtins(before), msgspec.to_builtins(now)
    return ", ".join(f"{name} was {then[name]}, is {since[name]}" for name in then if then[name] != since[name])
