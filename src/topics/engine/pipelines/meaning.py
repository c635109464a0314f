"""What a change of a definition means: whether a pipeline continues from its checkpoint or starts again.

Definitions are compared by meaning, not by text: a blank in the SQL must not make a pipeline repeat its output.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal, NamedTuple

import msgspec

from topics.model.errors import InvalidRequest
from topics.model.requests.pipelines import PipelineRequest, PipelineSink, PipelineSource
from topics.model.requests.ready_made import options_of

Effect = Literal["created", "same", "continues", "starts_again"]
_TOKEN: Final = re.compile(
    r"""
      (?P<left_out> \s+ | --[^\n]* | /\*(?!\+).*?\*/ )
    | \w*'(?:[^'\\]|\\.)*' | \w*"(?:[^"\\]|\\.)*" | `[^`]*` | \w+ | .
    """,
    re.VERBOSE | re.DOTALL,
)
# In a raw string a backslash escapes nothing, so that its end is found differently: such a text is compared as it is.
_RAW: Final = re.compile(r"\b[rR]['\"]")


class Plan(NamedTuple):
    """What a PUT does: the fields that change, and whether the pipeline continues from its checkpoint."""

    effect: Effect
    changed: list[str]


def plan_of(known: PipelineRequest | None, request: PipelineRequest, *, keep_checkpoint: bool = False) -> Plan:
    if known is None:
        return Plan("created", [])
    changed = [name for name in request.__struct_fields__ if getattr(known, name) != getattr(request, name)]
    if not changed:
        return Plan("same", [])
    if meaning(known) == meaning(request):
        return Plan("continues", changed)
    if keep_checkpoint:
        _check_fits(known, request)
        return Plan("continues", changed)
    return Plan("starts_again", changed)


def _check_fits(known: PipelineRequest, request: PipelineRequest) -> None:
    """A checkpoint has the offsets of each stream by its place in the query; state that differs is refused by Spark."""
    reason = None
    if known.sources.keys() != request.sources.keys():
        reason = "the views are not the same"
    for view, source in request.sources.items() if reason is None else ():
        before = known.sources[view]
        if _is_stream(before) != _is_stream(source):
            reason = f"sources.{view} is a stream only in one of both"
        elif (before.pattern is None) != (source.pattern is None) or not {*before.names()} <= {*source.names()}:
            reason = f"sources.{view} leaves out topics that it has read"
    if (known.use, known.python is None) != (request.use, request.python is None):
        reason = "the kind of the transformation differs"
    if reason is not None:
        raise InvalidRequest(f"keep_checkpoint is not possible: {reason}", field="keep_checkpoint")


def _is_stream(source: PipelineSource) -> bool:
    return source.table is None and not source.static


def meaning(request: PipelineRequest) -> dict[str, Any]:
    """The fields that a checkpoint depends on, in one form for all ways to write the same."""
    return {
        "sources": {view: _source(source) for view, source in request.sources.items()},
        "sql": None if request.sql is None else tokens(request.sql),
        "python": request.python,
        "use": request.use,
        "options": _options(request),
        "sink": None if request.sink is None else _sink(request.sink),
        "output_mode": request.output_mode or "append",
        "state_store": request.store(),
    }


def _source(source: PipelineSource) -> PipelineSource:
    names = sorted(set(source.names()))
    return msgspec.structs.replace(
        source,
        topic=None,
        topics=names or None,
        start=None if source.start == "earliest" else source.start,
        schema=None if source.schema is None else " ".join(tokens(source.schema)),
        static=source.static or None,
        # They only filter: state and offsets stay.
        expect=None,
        dead_letter=None,
    )


def _options(request: PipelineRequest) -> Any:
    """An option that is given as its default is as good as absent."""
    if request.use is None:
        return None
    try:
        return options_of(request.use, request.options)
    except (KeyError, msgspec.ValidationError):
        # Stored by another version.
        return request.options


def _sink(sink: PipelineSink) -> PipelineSink:
    # A table may be sorted otherwise from one compaction to the next.
    return msgspec.structs.replace(
        sink,
        take_over=None,
        cluster_by=None,
        partition_by=sink.partition_by or None,
        format=None if sink.format == "parquet" else sink.format,
    )


def tokens(sql: str) -> list[str]:
    """The text without blanks and comments between its words; hints stay. Case stays: it is that of the columns."""
    text = sql.strip().removesuffix(";")
    if _RAW.search(text) is not None:
        return [text]
    return [found[0] for found in _TOKEN.finditer(text) if found["left_out"] is None]
