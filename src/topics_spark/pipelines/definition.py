"""Definitions from files: the same fields as over HTTP, written as TOML, YAML or JSON, one pipeline or many."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, cast

import msgspec

from topics.cli.failure import spark_install
from topics.model.errors import InvalidRequest
from topics.model.names import check_topic_name
from topics.model.requests.pipelines import PipelineRequest, check_pipeline

ENDINGS = (".toml", ".yaml", ".yml", ".json")


def load_file(path: Path) -> dict[str, PipelineRequest]:
    """The pipelines of one file, by name.

    A file is a table of pipelines (`[pipelines.errors]` …), or a single one whose name is the file's.
    """
    content = _decode(path)
    if not isinstance(content, dict):
        raise InvalidRequest(f"{path}: a definition must be a table of fields")
    fields = cast("dict[str, Any]", content)
    named = cast("dict[str, Any]", fields["pipelines"]) if set(fields) == {"pipelines"} else {path.stem: fields}
    return {name: parse(definition, name, str(path)) for name, definition in named.items()}


def parse(definition: Any, name: str, where: str) -> PipelineRequest:
    """A checked definition; errors name the file, the pipeline and the field."""
    try:
        check_topic_name(name, "pipeline")
        return check_pipeline(msgspec.convert(definition, PipelineRequest))
    except (msgspec.ValidationError, InvalidRequest) as error:
        detail = error.detail if isinstance(error, InvalidRequest) else {}
        raise InvalidRequest(f"{where}: pipeline {name}: {error}", **detail) from None


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
        raise InvalidRequest(f"{path}: YAML needs the package pyyaml: {spark_install()}") from None
    except (ValueError, msgspec.DecodeError) as error:
        raise InvalidRequest(f"{path}: {error}") from None
