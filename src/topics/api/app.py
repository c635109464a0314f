"""The entry of the API: every request passes the same checks in the same order before its handler runs.

not ready or going down 503 ▶ key 401 ▶ path 404, method 405 ▶ scope and name 403 ▶ not primary 503 ▶ size 413
▶ type 415 ▶ body 400 ▶ the handler: names in the body 403, topic 404, conflicts 409, the reply of a repeated write,
caps 429, full topics 422
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from topics.api.auth import BEARER_PROTOCOL, Authenticator, Headers, KeyAuthenticator, OpenAuthenticator, Principal
from topics.api.call import Call
from topics.api.console.base_path import BasePath
from topics.api.cors import Cors
from topics.api.errors import reply_error
from topics.api.lifecycle import Lifecycle
from topics.api.live.stream_tokens import StreamTokens
from topics.api.routes import Bound, RouteTable
from topics.api.waiting import Handlers
from topics.http.refusal import BodyTooLarge, Refusal
from topics.http.request import Request
from topics.http.service import log_bug
from topics.model.encoding import from_base64url
from topics.model.errors import InvalidRequest, MethodNotAllowed, NotFound, TopicsError, UnsupportedMediaType
from topics.model.requests.large_bodies import LARGE_BYTES
from topics.model.requests.records import decode_body
from topics.model.settings import Settings

# Not a name that keys can be limited to: a wid belongs to the key that created it.
UNLIMITED = frozenset(("wid",))
# A body without records is at most as large as its longest list: this many bytes per item, or this in total.
PLAIN_BYTES_MAX = 2 * 1024 * 1024
PLAIN_ITEM_BYTES = 512
# What a link on any page may lead to: it shows something to a person, and changes nothing.
PAGES = frozenset((b"/", b"/console/"))
# How much errors show of what was sent.
SHOWN_CHARS_MAX = 128
CLOUDEVENTS = b"application/cloudevents"
UTF8_NAMES = frozenset((b"utf-8", b"utf8", b"us-ascii"))

Decoding = Generator[None, None, Any]


class Judged:
    """What follows from a head alone, for the next request on the connection with the same head."""

    __slots__ = ("bound", "headers", "name", "principal", "table")

    def __init__(
        self, table: RouteTable, bound: Bound, principal: Principal, name: str, headers: dict[bytes, bytes]
    ) -> None:
        # The judgement holds for this table.
        self.table = table
        self.bound = bound
        self.principal = principal
        self.name = name
        # without NOT_OF_ALL
        self.headers = headers


# Headers that are not kept with a judgement: one is a secret, one may differ.
NOT_OF_ALL = frozenset((b"authorization", b"content-length"))
# For a head that may be repeated, though nothing is concluded from it.
REPEATABLE = object()


class Api:
    """`table` may be replaced: before the store is open there are only the routes that need none."""

    def __init__(
        self,
        authenticator: Authenticator,
        lifecycle: Lifecycle,
        handlers: Handlers,
        table: RouteTable,
        settings: Settings,
        *,
        cors: Cors,
        stream_tokens: StreamTokens,
    ) -> None:
        self.table = table
        self._cors = cors
        self._stream_tokens = stream_tokens
        self._authenticator = authenticator
        self._lifecycle = lifecycle
        self._handlers = handlers
        self._settings = settings
        # Where large bodies are decoded, slice by slice; set before the first request.
        self.add_slices: Callable[[Callable[[], bool]], None] = _run_through
        self._plain_bytes_max = max(
            PLAIN_BYTES_MAX, PLAIN_ITEM_BYTES * settings.max_claim, PLAIN_ITEM_BYTES * settings.max_watch_topics
        )
        self._base = BasePath(settings.base_path)
        # The principal of requests without a key on public routes; None: a server without keys needs none anyway.
        self._stranger: Principal | None = None
        if isinstance(authenticator, KeyAuthenticator):
            self._stranger = OpenAuthenticator((), guarded=False).anyone
        self._probes_need_key = settings.probe_auth

    def handle(self, request: Request) -> None:
        if request.method == "OPTIONS" and self._cors.answer_preflight(request):
            return
        try:
            call = self._call(request)
            bound, headers = call.bound, call.headers
            if bound.changes and self._lifecycle.check_primary is not None:
                self._lifecycle.check_primary()
            if bound.decoder is not None:
                body = request.body
                decoding: Decoding | None = None
                if headers.get(b"content-type") != b"application/json":
                    decoding = _other_form(call)
                elif bound.decode_event is not None and (b"ce-specversion" in headers or b"ce-id" in headers):
                    decoding = bound.decode_event(call)
                if bound.check_body is not None:
                    bound.check_body(body)
                if len(body) > LARGE_BYTES:
                    decoding = decoding or (
                        bound.decode_large and bound.decode_large(bound.decoder, body, self._settings)
                    )
                    if decoding is not None:
                        self._decode_in_slices(call, decoding)
                        return
                    if len(body) > self._plain_bytes_max:
                        raise BodyTooLarge(self._plain_bytes_max)
                call.params = decode_body(bound.decoder, body or b"{}") if decoding is None else _decode_whole(decoding)
            _take_slot(call)
        except TopicsError as error:
            self._refuse(request, error)
            return
        except Refusal:
            raise
        except Exception as bug:  # noqa: BLE001 - rendered in the form of its route family, which only this place knows
            self._refuse_by_bug(request, bug)
            return
        self._handlers.run(call)

    def _decode_in_slices(self, call: Call, decoding: Decoding) -> None:
        """Decode the body of a call in turn with those of others, then run the call."""

        call.sliced = True

        def step() -> bool:
            try:
                if call.open:
                    next(decoding)
                    return True
            except StopIteration as end:
                call.params = end.value
                self._enter(call)
            except TopicsError as error:
                self._refuse(call.request, error)
            except Exception as bug:  # noqa: BLE001 - as above
                self._refuse_by_bug(call.request, bug)
            return False

        self.add_slices(step)

    def _enter(self, call: Call) -> None:
        try:
            _take_slot(call)
        except TopicsError as error:
            self._refuse(call.request, error)
        else:
            self._handlers.run_later(call)

    def handle_head(self, request: Request) -> None:
        """Refuse a request by its head, before a large body is read."""
        path = request.path_segments, request.raw_path
        if self._base:
            self._base.take_off(request)
        headers = first_values(request)
        try:
            bound, _, _ = self._judge(request, headers)
            length = int(headers.get(b"content-length") or 0)
            if 0 < bound.body_bytes_max < length:
                if bound.family is not None:
                    raise InvalidRequest(f"the body is larger than {bound.body_bytes_max} bytes")
                raise BodyTooLarge(bound.body_bytes_max)
            if bound.decoder is not None and bound.decode_large is None and length > self._plain_bytes_max:
                raise BodyTooLarge(self._plain_bytes_max)
        except TopicsError as error:
            self._refuse(request, error)
        except Refusal:
            raise
        except Exception as bug:  # noqa: BLE001 - as above
            self._refuse_by_bug(request, bug)
        # The request comes again with its body, as it was sent.
        request.path_segments, request.raw_path = path

    def _refuse(self, request: Request, error: TopicsError) -> None:
        """In the form that the contract of this path prescribes."""
        found = self._find(request, first_values(request))
        bound = found[0].get(request.method) if found is not None else None
        family = bound.family if bound is not None else self.table.family_of(request.path_segments)
        (reply_error if family is None else family.reply_error)(request, error)

    def _refuse_by_bug(self, request: Request, bug: Exception) -> None:
        self._refuse(request, TopicsError("a bug in the server, see its log", trace_id=log_bug(request, bug)))

    def _call(self, request: Request) -> Call:
        """The call of a request: decided by the head, unless the connection has the judgement of the same head."""
        judged = request.judged
        if isinstance(judged, Judged) and judged.table is self.table and self._lifecycle.serving:
            return Call(request, judged.headers, judged.bound, judged.principal, judged.name)
        if self._base:
            self._base.take_off(request)
        headers = first_values(request)
        bound, principal, name = self._judge(request, headers)
        if bound.may_be_repeated and (not request.query or _has_known_fields(request, bound)):
            # Tokens expire: their bearers are checked each time.
            kept = {name: value for name, value in headers.items() if name not in NOT_OF_ALL}
            request.judged = Judged(self.table, bound, principal, name, kept) if bound.family is None else REPEATABLE
        return Call(request, headers, bound, principal, name)

    def _find(self, request: Request, headers: Headers) -> tuple[dict[str, Bound], str] | None:
        """The routes of a path; where none takes the request, a protocol that recognises it may."""
        found = self.table.find(request.path_segments)
        if found is None or request.method not in found[0]:
            guest = self.table.guest(request, headers)
            if guest is not None:
                return {request.method: guest}, ""
        return found

    def _judge(self, request: Request, headers: Headers) -> tuple[Bound, Principal, str]:
        found = self._find(request, headers)
        bound = found[0].get(request.method) if found is not None else None
        if not self._lifecycle.serving and (bound is None or not bound.always):
            raise self._lifecycle.refusal()
        family = bound.family if bound is not None else self.table.family_of(request.path_segments)
        self._authenticator.check_origin(headers, is_page=request.method == "GET" and request.raw_path in PAGES)
        if family is not None:
            principal = family.authenticate(headers)
        elif (
            bound is not None
            and bound.public
            and self._stranger is not None
            and (bound.is_page or not self._probes_need_key)
        ):
            principal = self._stranger
        else:
            if bound is not None and b"authorization" not in headers:
                if bound.key_in_query:
                    headers = _with_key_of_query(request, headers)
                elif bound.key_in_subprotocol:
                    headers = _with_key_of_subprotocol(request, headers)
            bearer = None
            if bound is not None and bound.takes_stream_token:
                bearer = self._stream_tokens.bearer(headers)
            principal = bearer or self._authenticator.authenticate(headers)
        if found is None:
            path = _shown(request.raw_path)
            raise NotFound(f"there is no resource at {path}; /v0/openapi.json lists the paths", path=path)
        by_method, name = found
        if bound is None:
            raise MethodNotAllowed(f"this path does not support {request.method}", allow=sorted(by_method))
        if bound.scopes & ~principal.scopes:
            principal.check_scopes(bound.scopes)
        if name and not name.startswith(principal.prefixes) and bound.parameter not in UNLIMITED:
            principal.check_name(name.rpartition("/")[0] if bound.route.path.count("{") > 1 else name, bound.parameter)
        return bound, principal, name


def _take_slot(call: Call) -> None:
    principal = call.principal
    if call.bound.long_lived:
        return
    if principal.inflight < principal.inflight_max:
        call.take_slot()
    else:
        call.crowded = True
        if not call.bound.checks_slot:
            call.check_slot()


def _run_through(step: Callable[[], bool]) -> None:
    while step():
        pass


def first_values(request: Request) -> dict[bytes, bytes]:
    """Headers by name; of a repeated one, the first counts."""
    return dict(request.headers[::-1])


def _has_known_fields(request: Request, bound: Bound) -> bool:
    """A head with another field is not kept: that may be a secret in the wrong place."""
    known = [field.name for field in bound.route.query]
    return all(name in known for name, _ in request.query_pairs())


def _with_key_of_query(request: Request, headers: Headers) -> Headers:
    token = request.query_value("token")
    return headers if token is None else {**headers, b"authorization": b"Bearer " + token.encode()}


def _with_key_of_subprotocol(request: Request, headers: Headers) -> Headers:
    for offer in b",".join(request.header_values(b"sec-websocket-protocol")).decode("latin-1").split(","):
        _, prefix, text = offer.strip().partition(BEARER_PROTOCOL)
        if prefix:
            try:
                token = from_base64url(text)
            except ValueError:
                break
            return {**headers, b"authorization": b"Bearer " + token}
    return headers


def _shown(sent: bytes) -> str:
    """A path or header of a request, for an error message."""
    text = sent[: SHOWN_CHARS_MAX + 1].decode("ascii", "backslashreplace")
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}…"


def _check_is_json(headers: Headers, accepted: Sequence[str]) -> None:
    """Checks that the body is JSON in UTF-8; `accepted` are the types that the error names."""
    content_type = headers.get(b"content-type")
    named = " or ".join(accepted)
    if content_type is None:
        raise UnsupportedMediaType(f"a body needs the header Content-Type: {named}", accepted=accepted)
    if _media_type(content_type) != b"application/json":
        received = _shown(content_type)
        raise UnsupportedMediaType(
            f"the body must be of type {named}, not {received}", received=received, accepted=accepted
        )
    _check_is_utf8(content_type)


def _other_form(call: Call) -> Decoding | None:
    """How a body is decoded whose type is not plainly JSON; None if it is JSON in the end."""
    bound, headers = call.bound, call.headers
    content_type = headers.get(b"content-type", b"")
    media_type = _media_type(content_type)
    has_attributes = b"ce-specversion" in headers or b"ce-id" in headers
    if bound.decode_event is not None and has_attributes and not media_type.startswith(CLOUDEVENTS):
        return bound.decode_event(call)
    form = bound.other_bodies.get(media_type)
    if form is not None:
        _check_is_utf8(content_type)
        return form.decode(call)
    if call.request.body:
        _check_is_json(headers, ("application/json", *bound.route.other_bodies))
    return None


def _media_type(content_type: bytes) -> bytes:
    return content_type.partition(b";")[0].strip().lower()


def _check_is_utf8(content_type: bytes) -> None:
    for parameter in content_type.lower().split(b";")[1:]:
        name, _, value = parameter.strip().partition(b"=")
        if name == b"charset" and value.strip(b'"') not in UTF8_NAMES:
            received = _shown(content_type)
            raise UnsupportedMediaType(f"the body must be in UTF-8, not {received}", received=received)


def _decode_whole(decoding: Decoding) -> Any:
    while True:
        try:
            next(decoding)
        except StopIteration as end:
            return end.value
