"""The OpenAPI 3.1 document, generated from the table of routes and the structs that handlers decode with."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec

from topics.api.auth import Scope
from topics.api.call import Call
from topics.api.errors import RETRY_AFTER_S, status_of
from topics.api.lifecycle import VERSION
from topics.api.replies import encode
from topics.api.routes import QueryField, Route
from topics.api.schema import ErrorReply
from topics.model.requests.transactions import APP_BYTES_MAX, VERSION_MAX

REF = "#/components/schemas/{name}"
COMMON_ERRORS = (
    "not_found",
    "method_not_allowed",
    "uri_too_long",
    "headers_too_large",
    "request_timeout",
    "throttled",
    "internal",
)
LIFECYCLE_ERRORS = ("bucket_away", "not_ready", "shutting_down")
BODY_ERRORS = ("payload_too_large", "unsupported_media_type")
TOPIC_NAME: Final[Mapping[str, Any]] = {
    "type": "string",
    "pattern": "^[A-Za-z0-9][A-Za-z0-9._:-]{0,254}$",
    "minLength": 1,
    "maxLength": 255,
}
ROUTER_NAME: Final[Mapping[str, Any]] = {**TOPIC_NAME, "pattern": "^[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}$"}
PATH_SCHEMAS: Final[Mapping[str, Mapping[str, Any]]] = {
    "router": ROUTER_NAME,
    "app": {"type": "string", "minLength": 1, "maxLength": APP_BYTES_MAX},
    "version": {"type": "integer", "minimum": 0, "maximum": VERSION_MAX},
}


def openapi_routes(routes: Iterable[Route]) -> list[Route]:
    """The given rows, and one more that describes them and itself."""

    @functools.cache
    def document() -> bytes:
        return encode(describe(complete))

    def show(call: Call) -> None:
        call.reply(200, document())

    own = Route(
        method="GET",
        path="/v0/openapi.json",
        handler=show,
        summary="This description.",
        replies={200: dict[str, Any]},
    )
    complete = [*routes, own]
    return complete


def describe(routes: list[Route]) -> dict[str, Any]:
    types: list[Any] = [ErrorReply]
    types += [route.body for route in routes if route.body is not None]
    types += [reply for route in routes for reply in (*route.replies.values(), *route.other_forms.values())]
    types += [_error_type(route, status) for route in routes for status in _errors_by_status(route)]
    shown, components = msgspec.json.schema_components(types, ref_template=REF)
    _forget_null_defaults(components)
    schema_of = dict(zip(map(repr, types), shown, strict=True))
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "topics",
            "version": VERSION,
            "summary": "A persistent event engine: append records to topics, read them from a cursor.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
            },
        },
    }


def _operation(route: Route, schema_of: Mapping[str, Any]) -> dict[str, Any]:
    words = [word.strip("{}") for word in route.path.replace(".", "/").split("/") if word]
    operation: dict[str, Any] = {
        "operationId": "_".join([route.method.lower(), *words]),
        "summary": route.summary,
        "responses": _responses(route, schema_of),
    }
    parameters = [_parameter(field, "query") for field in route.query]
    parameters += [_parameter(field, "header") for field in route.headers]
    places = [
        {"name": name, "in": "path", "required": True, "schema": PATH_SCHEMAS.get(name, TOPIC_NAME)}
        for name in route.parameters
    ]
    parameters = places + parameters
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        required = any(field.required for field in msgspec.structs.fields(route.body))
        content = {"application/json": {"schema": schema_of[repr(route.body)]}}
        content |= {media_type: {"schema": form.schema} for media_type, form in route.other_bodies.items()}
        operation["requestBody"] = {"required": required, "content": content}
    if route.family is not None:
        operation["security"] = [{route.family.scheme: []}] if route.family.scheme else []
    elif not route.public:
        operation["security"] = [{"key": [scope.name.lower() for scope in route.scopes if scope.name]}]
    return operation


def _parameter(field: QueryField, place: str) -> dict[str, Any]:
    schema = msgspec.json.schema(field.type)
    if field.default is not None:
        schema["default"] = field.default
    return {
        "name": field.name,
        "in": place,
        "required": field.required,
        "description": field.summary,
        "schema": schema,
    }


def _responses(route: Route, schema_of: Mapping[str, Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, reply in route.replies.items():
        forms = {route.media_type: reply, **route.other_forms}
        content = {media_type: {"schema": schema_of[repr(form)]} for media_type, form in forms.items()}
        responses[str(status)] = {"description": HTTPStatus(status).phrase, "content": content}
    for status, codes in _errors_by_status(route).items():
        response: dict[str, Any] = {
            "description": " or ".join(codes),
            "content": {"application/json": {"schema": schema_of[repr(_error_type(route, status))]}},
        }
        if any(code in RETRY_AFTER_S for code in codes):
            schema = {"type": "integer", "minimum": 1}
            response["headers"] = {"Retry-After": {"description": "Seconds to wait.", "schema": schema}}
        if "method_not_allowed" in codes:
            schema = {"type": "string"}
            response["headers"] = {"Allow": {"description": "The methods that the path supports.", "schema": schema}}
        responses[str(status)] = response
    return responses


def _forget_null_defaults(components: Mapping[str, Any]) -> None:
    """A field that may be absent without a replacement value has no default to document."""
    for component in components.values():
        for schema in component.get("properties", {}).values():
            if "default" in schema and schema["default"] is None:
                del schema["default"]


def _error_type(route: Route, status: int) -> Any:
    return ErrorReply if route.family is None else route.family.error_type(status)


def _errors_by_status(route: Route) -> dict[int, list[str]]:
    codes = [*route.errors, *COMMON_ERRORS, "invalid_request"]
    if not route.always:
        codes += LIFECYCLE_ERRORS
    # Probes as well: they may be configured to need a key, and a server without keys checks the Host.
    codes += ("unauthorized", "forbidden")
    if route.body is not None:
        codes += BODY_ERRORS
    if _writes(route):
        codes += ("not_replicated", "read_only", "storage_full")
    by_status: dict[int, list[str]] = {}
    for code in sorted(set(codes)):
        by_status.setdefault(status_of(code), []).append(code)
    return dict(sorted(by_status.items()))


def _writes(route: Route) -> bool:
    """A POST that needs only the scope read is a query with a body; consuming in a group changes the group."""
    if route.method not in ("PUT", "POST", "PATCH", "DELETE"):
        return False
    reads_at_most = Scope.READ if route.family is None else Scope.NONE
    return bool(route.scopes & ~reads_at_most)
