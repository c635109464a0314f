"""Lineage: which pipelines read and write which topics and tables, as text, Graphviz, Mermaid or JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from topics.model.requests.pipelines import PipelineRequest

if TYPE_CHECKING:
    from topics.client import Pipeline

Kind = Literal["topic", "table", "pattern", "pipeline"]
SHAPES: Final = {"topic": "box", "table": "cylinder", "pattern": "note", "pipeline": "ellipse"}
BRACKETS: Final = {"topic": "[{}]", "table": "[({})]", "pattern": "[/{}/]", "pipeline": "([{}])"}


class Node(NamedTuple):
    kind: Kind
    name: str

    @property
    def id(self) -> str:
        return f"{self.kind}:{self.name}"


class Edge(NamedTuple):
    """`label`: the view it is read as, or why it is written."""

    start: Node
    end: Node
    label: str = ""


def edges(found: Iterable[Pipeline]) -> list[Edge]:
    """Inputs and outputs of each pipeline; a pattern also leads to the sinks of other pipelines that it matches."""
    definitions = {each.pipeline: msgspec.convert(each.definition, PipelineRequest) for each in found}
    written = {edge.end for name, each in definitions.items() for edge in _outputs(name, each)}
    topics = sorted(node.name for node in written if node.kind == "topic")
    drawn: list[Edge] = []
    for name, definition in definitions.items():
        drawn += _inputs(name, definition, topics)
        drawn += _outputs(name, definition)
    return list(dict.fromkeys(drawn))


def _inputs(name: str, definition: PipelineRequest, topics: list[str]) -> Iterator[Edge]:
    pipeline = Node("pipeline", name)
    for view, source in definition.sources.items():
        if source.table is not None:
            yield Edge(Node("table", source.table), pipeline, view)
        for topic in source.names():
            yield Edge(Node("topic", topic), pipeline, view)
        if source.pattern is not None:
            pattern = Node("pattern", source.pattern)
            yield Edge(pattern, pipeline, view)
            for topic in topics:
                if re.fullmatch(source.pattern, topic) is not None:
                    yield Edge(Node("topic", topic), pattern)


def _outputs(name: str, definition: PipelineRequest) -> Iterator[Edge]:
    pipeline = Node("pipeline", name)
    table = definition.table_written(name)
    if table is not None:
        yield Edge(pipeline, Node("table", table))
    elif definition.sink is not None and definition.sink.topic is not None:
        yield Edge(pipeline, Node("topic", definition.sink.topic))
    for topic, _ in definition.rejects():
        yield Edge(pipeline, Node("topic", topic), "rejected")


def upstream_and_downstream(all_edges: list[Edge], pipeline: str) -> list[Edge]:
    """What leads to a pipeline, and what it leads to."""
    around: set[Edge] = set()
    for near, far in (("start", "end"), ("end", "start")):
        reached = {Node("pipeline", pipeline)}
        while True:
            more = {edge for edge in all_edges if getattr(edge, near) in reached} - around
            if not more:
                break
            around |= more
            reached |= {getattr(edge, far) for edge in more}
    return [edge for edge in all_edges if edge in around]


def as_text(drawn: list[Edge], states: dict[str, str]) -> Iterator[str]:
    """A paragraph for each pipeline."""
    names = dict.fromkeys(node.name for edge in drawn for node in (edge.start, edge.end) if node.kind == "pipeline")
    for name in names:
        pipeline = Node("pipeline", name)
        yield f"{name}  {states.get(name, '')}".rstrip()
        for edge in drawn:
            if edge.end == pipeline:
                yield f"  ◀─ {_said(edge.start)} as {edge.label}"
        for edge in drawn:
            if edge.start == pipeline:
                yield f"  ─▶ {_said(edge.end)}" + (f" ({edge.label})" if edge.label else "")


def _said(node: Node) -> str:
    return f"topics {node.name}" if node.kind == "pattern" else f"{node.kind} {node.name}"


def as_dot(drawn: list[Edge]) -> Iterator[str]:
    yield "digraph pipelines {"
    yield "  rankdir=LR"
    for node in _nodes(drawn):
        yield f"  {_quoted(node.id)} [label={_quoted(node.name)}, shape={SHAPES[node.kind]}]"
    for edge in drawn:
        style = ", style=dashed" if edge.label == "rejected" else ""
        yield f"  {_quoted(edge.start.id)} -> {_quoted(edge.end.id)} [label={_quoted(edge.label)}{style}]"
    yield "}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def as_mermaid(drawn: list[Edge]) -> Iterator[str]:
    yield "flowchart LR"
    numbers = {node: f"n{number}" for number, node in enumerate(_nodes(drawn))}
    for node, number in numbers.items():
        text = node.name.replace('"', "#quot;")
        yield f"  {number}" + BRACKETS[node.kind].format(f'"{text}"')
    for edge in drawn:
        arrow = f"-. {edge.label} .->" if edge.label == "rejected" else "-->"
        yield f"  {numbers[edge.start]} {arrow} {numbers[edge.end]}"


def as_json(drawn: list[Edge]) -> dict[str, Any]:
    nodes = [{"id": node.id, "kind": node.kind, "name": node.name} for node in _nodes(drawn)]
    told = [{"from": edge.start.id, "to": edge.end.id, "label": edge.label} for edge in drawn]
    return {"nodes": nodes, "edges": told}


def _nodes(drawn: list[Edge]) -> list[Node]:
    return list(dict.fromkeys(node for edge in drawn for node in (edge.start, edge.end)))
