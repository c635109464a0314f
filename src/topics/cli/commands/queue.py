"""`topics queue`: look at jobs, take and finish them by hand, run a command for each, bring dead ones back."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from topics.cli.commands.completion import queue_names, topic_names
from topics.cli.commands.work import work
from topics.cli.connection import takes_client
from topics.cli.failure import FINE, NOT_SO
from topics.cli.output import print_json, print_table, say
from topics.cli.spans import shown_time, span_ms
from topics.model.requests.jobs import JobAction, JobState

if TYPE_CHECKING:
    from topics.client import Client, Record
    from topics.client.jobs import QueuedJob

app = typer.Typer(
    help="Inspect queues, claim jobs, run them, redrive dead letters.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
Queue = Annotated[
    str, typer.Argument(help="The queue.", metavar="QUEUE", autocompletion=queue_names, show_default=False)
]
Output = Annotated[Literal["text", "json"], typer.Option("--output", "-o", help="How to print it.")]
Seqs = Annotated[list[int], typer.Argument(help="The jobs, by their seqs.", metavar="SEQ", show_default=False)]
Node = Annotated[
    str | None, typer.Option(help="Who holds the jobs; the same for claim, ack and nack.", show_default="cli@HOST")
]
PAYLOAD_CHARS_MAX = 60
app.command("work")(work)


@app.command("peek")
@takes_client
def peek(
    client: Client,
    queue: Annotated[
        str,
        typer.Argument(
            help="The queue, or the topic of its dead letters.",
            metavar="QUEUE",
            autocompletion=topic_names,
            show_default=False,
        ),
    ],
    count: Annotated[int, typer.Option("--count", "-n", help="At most this many jobs.", min=1, max=1_000)] = 10,
    output: Output = "text",
) -> None:
    """Show the oldest jobs and who holds them, or dead letters and their reasons, without claiming any."""
    from topics.cli.lines import record_line

    page = client.diff(queue, limit=count)
    if output == "json":
        for record in page.records:
            print(record_line(record, "json", None).decode())
        return
    columns = [("seq", [record.seq for record in page.records]), *_standing(client, queue, page.records)]
    columns.append(("tag", [record.tag or "-" for record in page.records]))
    columns.append(("data", [_shortened(record) for record in page.records]))
    print_table([name for name, _ in columns], zip(*(cells for _, cells in columns), strict=True))


def _standing(client: Client, queue: str, records: list[Record]) -> Iterator[tuple[str, list[object]]]:
    """Columns: who holds each job, unless the topic is a log; and why each is a dead letter, if any is."""
    from topics.cli.lines import DeadLetter
    from topics.client import NotAQueue

    try:
        holders = {lease.seq: lease.node for lease in client.leases(queue)}
        yield "held by", [holders.get(record.seq, "-") for record in records]
    except NotAQueue:
        pass
    letters = [DeadLetter.of(record) for record in records]
    if any(letters):
        yield "from", ["-" if letter is None else letter.queue for letter in letters]
        yield "deliveries", ["-" if letter is None else letter.deliveries for letter in letters]
        yield "reason", ["-" if letter is None else letter.reason for letter in letters]


def _shortened(record: Record) -> str:
    return _cut(record.raw)


def _cut(payload: bytes) -> str:
    from topics.cli.lines import bare

    shown = bare(payload).decode()
    return shown if len(shown) <= PAYLOAD_CHARS_MAX else shown[: PAYLOAD_CHARS_MAX - 1] + "…"


@app.command("claim")
@takes_client
def claim(
    client: Client,
    queue: Queue,
    count: Annotated[int, typer.Option("--count", "-n", help="At most this many jobs.", min=1, max=1_000)] = 1,
    lease: Annotated[str | None, typer.Option(help="How long to hold them; by default the queue's lease_ms.")] = None,
    wait: Annotated[str, typer.Option(help="Wait this long for a job, up to 30s.", metavar="SPAN")] = "0",
    node: Node = None,
) -> None:
    """Claim jobs and print them, one per line; `ack` or `nack` them within the lease. Exit code 1: there was none."""
    from topics.cli.lines import job_json

    lease_ms = None if lease is None else span_ms(lease, "--lease")
    jobs = client.claim(queue, node or _default_node(), count, lease_ms, span_ms(wait, "--wait"))
    for job in jobs:
        print(job_json(job).decode())
    raise typer.Exit(FINE if jobs else NOT_SO)


@app.command("ack")
@takes_client
def ack(
    client: Client,
    queue: Queue,
    seqs: Seqs,
    node: Node = None,
    result: Annotated[
        str | None, typer.Option(help="The result of the job, which must be the only one.", metavar="JSON")
    ] = None,
) -> None:
    """Finish jobs: they are deleted. Exit code 1 if one of them is not held (any more)."""
    from topics.client import Json

    done = client.ack(queue, seqs, node or _default_node(), result=None if result is None else Json(result))
    _report("acked", done.acked, done.skipped)


@app.command("nack")
@takes_client
def nack(
    client: Client,
    queue: Queue,
    seqs: Seqs,
    delay: Annotated[
        str | None, typer.Option(help="Delay before the job can be claimed again.", metavar="SPAN")
    ] = None,
    dead: Annotated[bool, typer.Option("--dead", help="Move to the dead letters at once.")] = False,
    error: Annotated[str | None, typer.Option(help="The reason, kept with the dead letter.")] = None,
    node: Node = None,
) -> None:
    """Return jobs to the queue. Exit code 1 if one of them is not held (any more)."""
    delay_ms = None if delay is None else span_ms(delay, "--delay")
    given = client.nack(queue, seqs, node or _default_node(), delay_ms=delay_ms, dead_letter=dead, error=error)
    _report("nacked", given.nacked, given.skipped)


@app.command("cancel")
@takes_client
def cancel(client: Client, queue: Queue, seqs: Seqs) -> None:
    """Remove jobs, whatever their state; a worker that has one learns it when it extends its lease."""
    done = client.cancel(queue, seqs)
    _report("cancelled", done.cancelled, done.skipped, "no jobs (any more)")


@app.command("job")
@takes_client
def job(
    client: Client,
    queue: Queue,
    seq: Annotated[int, typer.Argument(help="The job, by its seq.", metavar="SEQ", min=1, show_default=False)],
    wait: Annotated[str | None, typer.Option(help="Wait this long for its end.", metavar="SPAN")] = None,
) -> None:
    """Show one job as JSON, after its end, too, if the queue keeps results.

    With --wait the exit code is 1 unless the job is done by then.
    """
    import msgspec

    from topics.client import JobCancelled, JobFailed, ResultTimeout

    in_time = True
    if wait is not None:
        try:
            client.job_handle(queue, seq).result(timeout=span_ms(wait, "--wait") / 1000)
        except (JobFailed, JobCancelled, ResultTimeout) as error:
            in_time = False
            say(error.message)
    print(msgspec.json.encode(client.job(queue, seq)).decode())
    raise typer.Exit(FINE if in_time else NOT_SO)


@app.command("group")
@takes_client
def group(
    client: Client,
    queue: Queue,
    name: Annotated[str, typer.Argument(help="The job group.", metavar="GROUP", show_default=False)],
) -> None:
    """Show how many jobs of a job group have ended. Exit code 1: it is not complete."""
    import msgspec

    status = client.job_group(queue, name)
    print_json(msgspec.to_builtins(status))
    raise typer.Exit(FINE if status.complete else NOT_SO)


@app.command("leases")
@takes_client
def leases(client: Client, queue: Queue, output: Output = "text") -> None:
    """List leases, the next to expire first."""
    import msgspec

    if output == "json":
        for lease in client.leases(queue):
            print_json(msgspec.to_builtins(lease))
        return
    rows = (
        (lease.seq, lease.node, _since(lease.claimed_ts), shown_time(lease.deadline), lease.deliveries)
        for lease in client.leases(queue)
    )
    print_table(("seq", "held by", "since", "until", "deliveries"), rows)


def _since(claimed_ts: int | None) -> str:
    return "before the start" if claimed_ts is None else shown_time(claimed_ts)


@app.command("jobs")
@takes_client
def jobs(
    client: Client,
    queue: Queue,
    state: Annotated[JobState, typer.Option(help="Which jobs.")] = "ready",
    tag: Annotated[str | None, typer.Option(help="Only jobs with this tag; `user-*` is a prefix.")] = None,
    count: Annotated[int, typer.Option("--count", "-n", help="At most this many jobs.", min=1)] = 20,
    output: Output = "text",
) -> None:
    """Show jobs by their state: ready, leased, delayed or dead, with what is known of their failures."""
    from itertools import islice

    import msgspec

    found = islice(client.jobs(queue, state, tag=tag, page_size=min(count, 1_000)), count)
    if output == "json":
        for job in found:
            print(msgspec.json.encode(job).decode())
        return
    rows = (
        (job.seq, job.tag or "-", job.deliveries, job.worker or "-", _due(job), job.error or "-", _cut(bytes(job.data)))
        for job in found
    )
    print_table(("seq", "tag", "deliveries", "held by", "until", "error", "data"), rows)


def _due(job: QueuedJob) -> str:
    moment = job.deadline or job.due
    return "-" if moment is None else shown_time(moment)


@app.command("history")
@takes_client
def history(
    client: Client,
    queue: Queue,
    output: Output = "text",
    count: Annotated[int, typer.Option("--count", "-n", help="At most this many points.", min=1)] = 20,
) -> None:
    """Print the last points of a queue's past, one every 10 s for an hour: throughput, failures, waiting."""
    found = client.queue_history(queue)
    if output == "json":
        print_json(found)
        return
    columns = [[shown_time(ts) for ts in found["ts"]], *found["series"].values()]
    print_table(("time", *found["series"]), list(zip(*columns, strict=True))[-count:])


@app.command("change")
@takes_client
def change(
    client: Client,
    queue: Queue,
    action: Annotated[
        JobAction,
        typer.Argument(help="retry, release, extend, bury, redrive or delete.", metavar="ACTION", show_default=False),
    ],
    seqs: Annotated[
        list[int] | None, typer.Argument(help="The jobs, by their seqs.", metavar="SEQ", show_default=False)
    ] = None,
    state: Annotated[JobState | None, typer.Option(help="Only jobs of this state; bury and delete need it.")] = None,
    tag: Annotated[str | None, typer.Option(help="Jobs with this tag; `user-*` is a prefix.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All jobs of the state.")] = False,
    limit: Annotated[int | None, typer.Option(help="At most this many, up to 10000.", min=1)] = None,
    lease: Annotated[str | None, typer.Option(help="For extend: the time from now on.", metavar="SPAN")] = None,
    rate: Annotated[int | None, typer.Option(help="For redrive: at most this many per second.", min=1)] = None,
    error: Annotated[str | None, typer.Option(help="The reason, kept with the job.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report how many would be changed.")] = False,
) -> None:
    """Change many jobs at once, by seq, by tag, or all of a state."""
    changed = client.change_jobs(
        queue,
        action,
        state=state,
        seqs=seqs or None,
        match=None if tag is None else ("tag", "Glob" if tag.endswith("*") else "Eq", tag),
        all=every,
        limit=limit,
        lease_ms=None if lease is None else span_ms(lease, "--lease"),
        rate_per_s=rate,
        error=error,
        dry_run=dry_run,
    )
    print_json({"changed": changed.changed, "skipped": changed.skipped, "more": changed.more})
    if dry_run:
        say("a dry run: nothing was changed")


@app.command("redrive")
@takes_client
def redrive(
    client: Client,
    topic: Annotated[
        str,
        typer.Argument(
            help="The topic of dead letters.", metavar="TOPIC", autocompletion=topic_names, show_default=False
        ),
    ],
    tag: Annotated[str | None, typer.Option(help="Only jobs with this tag; `user-*` is a prefix.")] = None,
    limit: Annotated[int | None, typer.Option(help="At most this many.", min=1)] = None,
    rate: Annotated[int | None, typer.Option(help="At most this many per second.", min=1)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report what would be moved.")] = False,
) -> None:
    """Move dead letters back to the queues they came from."""
    match = None if tag is None else ("tag", "Glob" if tag.endswith("*") else "Eq", tag)
    driven = client.redrive(topic, match=match, limit=limit, rate_per_s=rate, dry_run=dry_run)
    print_json({"moved": driven.moved, "to": driven.to, "skipped": driven.skipped, "more": driven.more})
    if dry_run:
        say("a dry run: nothing was moved")
    if not driven.moved and not driven.skipped and (other := _dead_letter_topic(client, topic)):
        say(f"there is nothing to move in {topic}; its own dead letters are in {other}: topics queue redrive {other}")


def _dead_letter_topic(client: Client, queue: str) -> str | None:
    from topics.client import Forbidden

    try:
        return client.state(queue, touch=False).config.dead_letter
    except Forbidden:
        return None


@app.command("pause")
@takes_client
def pause(client: Client, queue: Queue) -> None:
    """Hand out no more jobs until `resume`; claimed jobs may be finished."""
    client.pause(queue)
    say(f"{queue} is paused")


@app.command("resume")
@takes_client
def resume(client: Client, queue: Queue) -> None:
    """Hand out jobs again."""
    client.resume(queue)
    say(f"{queue} is resumed")


def _default_node() -> str:
    """The same node in every command, so that `ack` can finish what `claim` took."""
    return f"cli@{socket.gethostname()}"


def _report(verb: str, count: int, skipped: list[int], why: str = "not held here (any more)") -> None:
    print_json({verb: count, "skipped": skipped})
    if skipped:
        say(f"{why}: {', '.join(map(str, skipped))}")
        raise typer.Exit(NOT_SO)
