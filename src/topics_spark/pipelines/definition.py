"""Definitions from files: the same fields as over HTTP, written as TOML, YAML or JSON, one pipeline or many."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, cast

import msgspec

from topics.model.errors import InvalidRequest
from topics.model.extras import install_command
from topics.model.names import check_topic_name
from topics.model.requests.pipelines import PipelineRequest, PipelineSink, check_pipeline
from topics_spark.pipelines.assignment import PROGRESS, manifest_topic
from topics_spark.pipelines.quality.cases import TESTS, Case, cases_of

ENDINGS = (".toml", ".yaml", ".yml", ".json")


def load_file(path: Path) -> dict[str, PipelineRequest]:
    """The pipelines of one file, by name.

    A file is a table of pipelines (`[pipelines.errors]` …), or a single one whose name is the file's.
    """
    return {name: parse(fields, name, str(path)) for name, (fields, _) in _read(path).items()}


def load_cases(path: Path) -> dict[str, tuple[PipelineRequest, list[Case]]]:
    """The pipelines of one file with their tests."""
    return {
        name: (parse(fields, name, str(path)), cases_of(tests, f"{path}: pipeline {name}"))
        for name, (fields, tests) in _read(path).items()
    }


def _read(path: Path) -> dict[str, tuple[Any, Any]]:
    """The fields of each pipeline and its tests, as they are written."""
    content = _decode(path)
    if not isinstance(content, dict):
        raise InvalidRequest(f"{path}: a definition must be a table of fields")
    fields = cast("dict[str, Any]", content)
    named = cast("dict[str, Any]", fields["pipelines"]) if set(fields) == {"pipelines"} else {path.stem: fields}
    return {name: _without_tests(definition) for name, definition in named.items()}


def _without_tests(definition: Any) -> tuple[Any, Any]:
    if not isinstance(definition, dict):
        return definition, []
    fields = dict(cast("dict[str, Any]", definition))
    tests = fields.pop(TESTS, [])
    return fields, tests


def parse(definition: Any, name: str, where: str) -> PipelineRequest:
    """A checked definition; errors name the file, the pipeline and the field."""
    try:
        check_topic_name(name, "pipeline")
        return check_patterns(name, check_pipeline(msgspec.convert(definition, PipelineRequest)))
    except (msgspec.ValidationError, InvalidRequest) as error:
        detail = error.detail if isinstance(error, InvalidRequest) else {}
        raise InvalidRequest(f"{where}: pipeline {name}: {error}", **detail) from None


def check_patterns(name: str, definition: PipelineRequest) -> PipelineRequest:
    """Refuse a pattern that matches what the pipeline, or the runner for it, appends with every batch."""
    if (fed := fed_by_itself(definition, [*outputs(name, definition), PROGRESS])) is not None:
        view, topic = fed
        raise InvalidRequest(f"{feeding(view, topic)}", field=f"sources.{view}.pattern")
    return definition


def outputs(name: str, definition: PipelineRequest) -> list[str]:
    """The topics that it writes: its sink or the manifest of its table, and those for what is not accepted."""
    sink = definition.sink
    main = sink.topic if sink is not None and sink.topic is not None else manifest_topic(name)
    return [main, *(topic for topic, _ in definition.rejects())]


def fed_by_itself(definition: PipelineRequest, topics: list[str]) -> tuple[str, str] | None:
    """The view with a pattern that matches one of the topics, and that topic."""
    for view, source in definition.sources.items():
        for topic in topics if source.pattern is not None and not source.static else ():
            if re.fullmatch(source.pattern or "", topic) is not None:
                return view, topic
    return None


def feeding(view: str, topic: str) -> str:
    return (
        f"sources.{view}.pattern matches {topic}, which the pipeline itself makes longer with every batch: "
        f"leave it out, for example with (?!{re.escape(topic)}$) in front of the pattern"
    )


def taking_over(name: str, definition: PipelineRequest) -> PipelineRequest:
    """The same, with the consent to continue a table of another pipeline."""
    table = definition.table_written(name)
    if table is None:
        return definition
    sink = msgspec.structs.replace(definition.sink or PipelineSink(table=table), take_over=True)
    return msgspec.structs.replace(definition, sink=sink)


def _decode(path: Path) -> Any:
    if path.suffix not in ENDINGS:
        raise InvalidRequest(f"{path}: the name of a definition's file must end in one of {', '.join(ENDINGS)}")
    try:
        text = path.read_text(encoding="utf-8")
        match path.suffix:
            case ".toml":
                return tomllib.loads(text)
            case ".json":
                return msgspec.json.decode(text)
            case _:
                return msgspec.yaml.decode(text)
    except OSError as error:
        raise InvalidRequest(f"{path}: {error.strerror}") from None
    except ImportError:
        raise InvalidRequest(f"{path}: YAML needs the package pyyaml: {install_command('spark')}") from None
    except (ValueError, msgspec.DecodeError) as error:
        raise InvalidRequest(f"{path}: {error}") from None
