"""The table of routes: which method on which path needs which scopes, takes which body, and has which handler.

A resource adds its rows by being a file with a function that returns them; routing, auth, OpenAPI and 405 follow from
the row. A path is literal segments and `{name}`s; with several names, the handler gets their values joined by slashes:

    Route("POST", "/v0/topics/{topic}/diff", handler, Scope.READ, body=DiffRequest, ...)
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from topics.api.auth import Scope
from topics.api.errors import reply_error
from topics.api.route_family import RouteFamily
from topics.engine.core.waiting.runner import Steps
from topics.http.request import Request
from topics.model.requests.batch import BatchLimits
from topics.model.requests.large_bodies import decode_large

if TYPE_CHECKING:
    from topics.api.call import Call

# From this many segments on, the paths below one belong together: /v1/api.
FAMILY_DEPTH = 2

# Replies to the call, or returns the steps that will.
Handler = Callable[["Call"], Steps[None] | None]
LargeDecoder = Callable[[msgspec.json.Decoder[Any], bytes, BatchLimits], Generator[None, None, Any]]


@dataclass(frozen=True, slots=True)
class QueryField:
    """A field of the query string, as the documentation shows it; handlers read it through `Call`."""

    name: str
    type: Any
    summary: str
    # the value if the field is absent; None: no particular one
    default: bool | int | None = None
    required: bool = False


@dataclass(frozen=True, slots=True)
class BodyForm:
    """A body of another media type, decoded into the same struct, with pauses; `schema` is for the documentation."""

    decode: Callable[[Call], Generator[None, None, Any]]
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    method: str
    path: str
    handler: Handler
    summary: str
    scopes: Scope = Scope.NONE
    # the request
    body: type[msgspec.Struct] | None = None
    # refuses a body after a check of its bytes, before decoding it would cost much more than sending it did
    check_body: Callable[[bytes], None] | None = None
    # by media type
    other_bodies: Mapping[str, BodyForm] = field(default_factory=dict[str, BodyForm])
    # decodes a CloudEvent whose attributes are headers: its body may be of any media type
    decode_event: Callable[[Call], Generator[None, None, Any]] | None = None
    # decodes a large body piece by piece; not needed if its records are in a field `records`
    decode_large: LargeDecoder | None = None
    query: tuple[QueryField, ...] = ()
    headers: tuple[QueryField, ...] = ()
    # the reply
    replies: Mapping[int, Any] = field(default_factory=dict[int, Any])
    errors: tuple[str, ...] = ()
    # available while the server is not ready or going down
    always: bool = False
    # available without a key even if there are keys
    public: bool = False
    # part of the console: needs no key even if probes do
    is_page: bool = False
    # takes the key as `?token=` as well: browsers cannot send headers with an EventSource
    key_in_query: bool = False
    # accepts a stream token instead of a key
    takes_stream_token: bool = False
    # accepts the key as a subprotocol as well: browsers cannot send headers with a WebSocket either
    key_in_subprotocol: bool = False
    # whether it changes something that is in the log: a standby refuses it; None: its method tells
    changes: bool | None = None
    # stays open, and is counted as a stream instead of a request in flight
    long_lived: bool = False
    # checks by itself whether its principal is at its cap (`Call.check_slot`), after all other errors
    checks_slot: bool = False
    media_type: str = "application/json"
    # media types that a client may request instead by `Accept`
    other_forms: Mapping[str, Any] = field(default_factory=dict[str, Any])
    # how callers authenticate instead, and the form of errors then
    family: RouteFamily | None = None
    # a protocol that is recognised by its headers: its requests are those that no other route takes, at any path
    recognises: Callable[[Request, Mapping[bytes, bytes]], bool] | None = None
    # a larger body is refused before it is read; 0: the limit of all bodies
    body_bytes_max: int = 0

    @property
    def parameters(self) -> list[str]:
        """The names of the variable parts of the path: `topic`, `router`."""
        return [segment[1:-1] for segment in self.path.split("/") if segment.startswith("{")]

    @property
    def parameter(self) -> str:
        """The first of them; empty if there is none."""
        return next(iter(self.parameters), "")


class Node:
    """One segment of the paths; `name` is the node of a variable segment, `family` that of the paths below."""

    __slots__ = ("by_method", "family", "literals", "name")

    def __init__(self) -> None:
        self.literals: dict[str, Node] = {}
        self.name: Node | None = None
        self.by_method: dict[str, Bound] = {}
        self.family: RouteFamily | None = None


class Bound:
    """A route ready for use: the attributes that the hot path reads."""

    __slots__ = (
        "always",
        "body_bytes_max",
        "changes",
        "check_body",
        "checks_slot",
        "decode_event",
        "decode_large",
        "decoder",
        "family",
        "handler",
        "is_page",
        "key_in_query",
        "key_in_subprotocol",
        "long_lived",
        "may_be_repeated",
        "other_bodies",
        "parameter",
        "public",
        "reply_error",
        "route",
        "scopes",
        "takes_stream_token",
    )

    def __init__(self, route: Route) -> None:
        self.route = route
        self.handler = route.handler
        self.family = route.family
        self.reply_error = reply_error if route.family is None else route.family.reply_error
        self.always = route.always
        self.changes = route.method != "GET" if route.changes is None else route.changes
        self.public = route.public
        self.is_page = route.is_page
        self.long_lived = route.long_lived
        self.body_bytes_max = route.body_bytes_max
        self.checks_slot = route.checks_slot
        self.key_in_query = route.key_in_query
        self.key_in_subprotocol = route.key_in_subprotocol
        self.takes_stream_token = route.takes_stream_token
        # A connection may keep the head of a request: the key is in no other place than the usual one. A protocol of
        # its own may sign each request, and then no head comes twice.
        self.may_be_repeated = not (
            route.long_lived
            or route.key_in_query
            or route.key_in_subprotocol
            or route.takes_stream_token
            or route.recognises is not None
        )
        self.scopes = int(route.scopes)
        self.parameter = route.parameter
        self.check_body = route.check_body
        self.other_bodies = {media_type.encode(): form for media_type, form in route.other_bodies.items()}
        self.decode_event = route.decode_event
        self.decoder = None if route.body is None else msgspec.json.Decoder(route.body)
        # how a large body is decoded piece by piece; None: it has no records, and is refused
        self.decode_large = route.decode_large
        if route.body is not None and "records" in route.body.__struct_fields__:
            self.decode_large = decode_large


class RouteTable:
    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._root = Node()
        self._guests: list[Bound] = []
        for route in self.routes:
            if route.recognises is None:
                self._add(route)
            else:
                self._guests.append(Bound(route))

    def _add(self, route: Route) -> None:
        node = self._root
        for depth, segment in enumerate(route.path[1:].split("/"), 1):
            if segment.startswith("{"):
                node.name = node.name or Node()
                node = node.name
            else:
                node = node.literals.setdefault(segment, Node())
            # If there are several, the one that authenticates: only its callers may learn which paths exist.
            if depth >= FAMILY_DEPTH and (node.family is None or not node.family.scheme):
                node.family = route.family or node.family
        assert route.method not in node.by_method, f"{route.method} {route.path} is in the table twice"
        bound = node.by_method[route.method] = Bound(route)
        if route.method == "GET":
            node.by_method["HEAD"] = bound

    def family_of(self, segments: list[str]) -> RouteFamily | None:
        """The family of a path that has no route, or none for this method."""
        node = self._root
        for segment in segments:
            step = node.literals.get(segment, node.name)
            if step is None:
                break
            node = step
        return node.family

    def guest(self, request: Request, headers: Mapping[bytes, bytes]) -> Bound | None:
        """The route of a protocol that recognises this request, which no other route takes."""
        for bound in self._guests:
            recognises = bound.route.recognises
            if bound.route.method == request.method and recognises is not None and recognises(request, headers):
                return bound
        return None

    def find(self, segments: list[str]) -> tuple[dict[str, Bound], str] | None:
        """The routes of the path by method, and the name in it. A literal segment takes precedence over a name."""
        node = self._root
        name = ""
        for segment in segments:
            step = node.literals.get(segment)
            if step is None:
                step = node.name
                if step is None or not segment:
                    return None
                name = f"{name}/{segment}" if name else segment
            node = step
        return (node.by_method, name) if node.by_method else None
