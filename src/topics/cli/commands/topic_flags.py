"""One flag per field of a topic's configuration, and the request that the given flags make."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, Optional

import typer

from topics.cli.failure import CommandFailed
from topics.cli.spans import size_bytes, span_ms

NONE = "none"


class Field(NamedTuple):
    """A field of the configuration as a flag. `kind` says how its text is parsed."""

    name: str
    flag: str
    kind: Literal["span", "size", "count", "rate", "choice", "switch", "topic", "json"]
    help: str
    choices: tuple[str, ...] = ()
    # Whether `none` takes its value away.
    optional: bool = False


FIELDS: Final = (
    Field("ttl_ms", "--ttl", "span", "Records older than this expire, e.g. 7d; 0 keeps them."),
    Field("cap_records", "--cap-records", "count", "Number of records to keep; 0 is unlimited."),
    Field("cap_bytes", "--cap-bytes", "size", "Bytes to keep, e.g. 1GiB; 0 is unlimited."),
    Field("discard", "--discard", "choice", "At a cap: drop the oldest, or refuse the write.", ("old", "reject")),
    Field(
        *("durability", "--durability", "choice", "How durable a write is when it is acknowledged."),
        choices=("ephemeral", "memory", "disk", "fsync", "replicated"),
    ),
    Field(
        *("priority", "--priority", "count"),
        "-1000 to 1000, or none; lower ones are refused first under pressure.",
        optional=True,
    ),
    Field("auto_priority", "--auto-priority", "switch", "Without a priority: by how recently the topic was read."),
    Field("auto_create", "--auto-create", "switch", "Whether a write may create the topic."),
    Field(
        "idempotency_window_ms", "--idempotency-window", "span", "How long a write's key is remembered; 0: not at all."
    ),
    Field("dedupe_node", "--dedupe-node", "switch", "Whether readers that name their node do not get its records."),
    Field("lease_ms", "--lease", "span", "Queue: how long a job is leased."),
    Field("claim_jitter_ms", "--claim-jitter", "span", "Queue: collect claims this long, and distribute jobs evenly."),
    Field(
        "max_deliveries",
        "--max-deliveries",
        "count",
        "Queue: after this many deliveries a job becomes a dead letter; 0: never.",
    ),
    Field("dead_letter", "--dead-letter", "topic", "Queue: the topic for dead letters, or none.", optional=True),
    Field("leases_durable", "--leases-durable", "switch", "Queue: leases survive a restart."),
    Field(
        *("keep_results_ms", "--keep-results", "span", "Queue: keep what became of a job this long; 0: not at all."),
    ),
    Field(
        *("retry_backoff", "--retry-backoff", "json", "Queue: how long a failed job waits, or none:"),
        optional=True,
    ),
    Field(
        *("max_in_flight", "--max-in-flight", "count", "Queue: the most jobs leased at once, or none."),
        optional=True,
    ),
    Field(
        *("max_in_flight_per_tag", "--max-in-flight-per-tag", "count"),
        "Queue: the same for the jobs of each tag; 1: one at a time, in order; or none.",
        optional=True,
    ),
    Field(
        *("rate_per_s", "--rate", "rate", "Queue: the most jobs claimed per second, e.g. 0.5, or none."),
        optional=True,
    ),
    Field(
        *("burst", "--burst", "count", "Queue: how many jobs --rate lets through at once, or none."),
        optional=True,
    ),
    Field(
        *("rate_per_s_per_tag", "--rate-per-tag", "rate", "Queue: like --rate for the jobs of each tag, or none."),
        optional=True,
    ),
    Field(
        *("burst_per_tag", "--burst-per-tag", "count", "Queue: like --burst for the jobs of each tag, or none."),
        optional=True,
    ),
)
BACKOFF_EXAMPLE = ' {"initial_ms":1000,"factor":2,"max_ms":60000,"jitter":0.1}'


def takes_wish(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command a flag per field; its second argument has the given fields, as in JSON."""
    own = list(inspect.signature(command, eval_str=True, locals={"Client": object}).parameters.values())

    @functools.wraps(command)
    def run(client: Any, **given: Any) -> None:
        request = {
            field.name: _value(field, given.pop(field.name)) for field in FIELDS if given[field.name] is not None
        }
        for field in FIELDS:
            given.pop(field.name, None)
        command(client, request, **given)

    flags = [_flag(field) for field in FIELDS]
    parameters = [own[0], *(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own[2:]), *flags]
    run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    del run.__wrapped__
    return run


def _flag(field: Field) -> inspect.Parameter:
    annotation: Any = str | None
    if field.kind == "switch":
        option = typer.Option(None, f"{field.flag}/--no-{field.flag.removeprefix('--')}", help=field.help)
        annotation = bool | None
    elif field.kind == "choice":
        annotation = Optional[Literal[field.choices]]  # noqa: UP045 - made at run time, where `|` is not defined
        option = typer.Option(None, field.flag, help=field.help)
    else:
        shown = field.help + (BACKOFF_EXAMPLE if field.kind == "json" else "")
        option = typer.Option(None, field.flag, metavar=field.kind.upper(), help=shown)
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=annotation)


def _value(field: Field, given: Any) -> Any:
    if field.optional and given == NONE:
        return None
    match field.kind:
        case "span":
            return span_ms(given, field.flag)
        case "size":
            return size_bytes(given, field.flag)
        case "count":
            if not given.removeprefix("-").isdigit():
                raise CommandFailed(f"{field.flag} is {given!r}, but must be a whole number")
            return int(given)
        case "rate":
            if not given.replace(".", "", 1).isdecimal():
                raise CommandFailed(f"{field.flag} is {given!r}, but must be a number such as 0.5")
            return float(given)
        case "json":
            try:
                return json.loads(given)
            except ValueError as error:
                raise CommandFailed(f"{field.flag} is not valid JSON: {error}; an example:{BACKOFF_EXAMPLE}") from None
        case _:
            return given
