"""TypeScript types of the HTTP API, made from its OpenAPI document: `python tools/client_types.py` writes api.ts."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.serving import serving

TARGET = Path(__file__).parent.parent / "console" / "client" / "src" / "api.ts"
HEAD = """\
// Made by tools/client_types.py from the OpenAPI document of the server; a test keeps it current.

/** JSON whose text is kept as it was sent: numbers of any size and form, white space, order of keys. */
export interface RawJson {
  readonly source: string;
}
"""
# Fields whose text is kept: payloads are never decoded by the client.
RAW_FIELDS = frozenset(("data", "meta"))
RAW_TYPES = frozenset(("Record", "JobItem", "ClaimedJob"))


def document() -> Any:
    with tempfile.TemporaryDirectory() as path, serving(Path(path)) as server:
        return server.client().get("/v0/openapi.json").json


def type_of(schema: Any) -> str:
    """A schema as a TypeScript type."""
    if not schema:
        return "unknown"
    if "$ref" in schema:
        return name_of(schema["$ref"].rpartition("/")[2])
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return " | ".join(dict.fromkeys(type_of(part) for part in schema[union]))
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(type_of({**schema, "type": each}) for each in kind)
    match kind:
        case "array":
            inner = type_of(schema.get("items"))
            return f"({inner})[]" if "|" in inner else f"{inner}[]"
        case "object":
            if "properties" in schema:
                return "{ " + "; ".join(fields(schema, "")) + " }"
            return f"{{ [key: string]: {type_of(schema.get('additionalProperties') or {})} }}"
        case "integer" | "number":
            return "number"
        case "string":
            return "string"
        case "boolean":
            return "boolean"
        case "null":
            return "null"
        case _:
            return "unknown"


def name_of(component: str) -> str:
    """Two structs of the same name have their modules before it: topics.api.groups.consumers.AckReply."""
    module, _, name = component.rpartition(".")
    return module.split(".")[-1].title() + name if module else name


def fields(schema: Any, name: str) -> list[str]:
    required = set(schema.get("required", ()))
    found: list[str] = []
    for field, inner in schema["properties"].items():
        shown = field if field.isidentifier() else json.dumps(field)
        kind = "RawJson" if name in RAW_TYPES and field in RAW_FIELDS else type_of(inner)
        found.append(f"{shown}{'' if field in required else '?'}: {kind}")
    return found


def interfaces(components: Any) -> list[str]:
    lines: list[str] = []
    for component, schema in sorted(components.items()):
        name = name_of(component)
        lines.append("")
        if "description" in schema:
            lines.append(f"/** {' '.join(schema['description'].split())} */")
        if "properties" not in schema:
            lines.append(f"export type {name} = {type_of(schema)};")
            continue
        lines.append(f"export interface {name} {{")
        lines += [f"  {field};" for field in fields(schema, name)]
        lines.append("}")
    return lines


def operations(paths: Any) -> list[str]:
    """What each route takes and answers, by method and path."""
    lines = ["", "/** Every route: what is in its path, its query and its body, and what it answers. */"]
    lines.append("export interface Routes {")
    for path, methods in sorted(paths.items()):
        for method, operation in methods.items():
            parameters = operation.get("parameters", [])
            lines.append(f"  /** {operation['summary']} */")
            lines.append(f'  "{method.upper()} {path}": {{')
            for place in ("path", "query"):
                shown = [
                    f"{parameter['name']}{'' if parameter['required'] else '?'}: {type_of(parameter['schema'])}"
                    for parameter in parameters
                    if parameter["in"] == place
                ]
                lines.append(f"    {place}: {{ {'; '.join(shown)} }};" if shown else f"    {place}: object;")
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            lines.append(f"    body: {type_of(body) if body else 'undefined'};")
            lines.append(f"    reply: {reply_of(operation)};")
            lines.append("  };")
    return [*lines, "}"]


def reply_of(operation: Any) -> str:
    for status, reply in operation["responses"].items():
        if status.startswith("2"):
            content = reply["content"]
            return type_of(content.get("application/json", next(iter(content.values())))["schema"])
    return "undefined"


def render(described: Any) -> str:
    return (
        "\n".join([HEAD.rstrip(), *interfaces(described["components"]["schemas"]), *operations(described["paths"])])
        + "\n"
    )


if __name__ == "__main__":
    TARGET.write_text(render(document()))
