"""The route of SQS: recognise a request, check its signature, run its operation, reply in the form it came in.

POST /                      X-Amz-Target: AmazonSQS.SendMessage, or a form with Action=SendMessage
POST /{account}/{queue}     the same; the path names the queue
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from topics.api.admission import Pressure
from topics.api.auth import Authenticator, Headers, Key, KeyAuthenticator, Principal
from topics.api.call import Call
from topics.api.errors import headers_of
from topics.api.routes import Route
from topics.api.schema import ErrorReply
from topics.api.sqs.errors import SqsError, as_sqs_error
from topics.api.sqs.exchange import REGION, Exchange
from topics.api.sqs.json_protocol import TARGET, JsonProtocol
from topics.api.sqs.moves import MoveOperations
from topics.api.sqs.operations import SENT_BYTES_MAX, After, Operation
from topics.api.sqs.query_protocol import QueryProtocol
from topics.api.sqs.queues import QueueOperations
from topics.api.sqs.signature import Signable, Signed, Verifier, joined_headers, parse_authorization
from topics.api.sqs.transfers import MessageOperations
from topics.api.waiting import answering
from topics.engine.core.engine import Engine
from topics.engine.core.waiting.runner import Steps
from topics.engine.queues.waiting_claims import Claims
from topics.http.request import Header, Request
from topics.model.clock import Clock
from topics.model.errors import TopicsError

FORM: Final = b"application/x-www-form-urlencoded"
# Hashed at once.
HASHED_BYTES: Final = 256 * 1024


def recognises(request: Request, headers: Headers) -> bool:
    """At the root, and at the path of a queue's URL. Before its body is there, a form may be one of SQS."""
    segments = request.path_segments
    if segments != [""] and not (len(segments) == 2 and segments[0].isdigit()):
        return False
    if _has_target(headers):
        return True
    return _is_form(headers) and (not request.received_s or b"Action=" in request.body)


def _has_target(headers: Headers) -> bool:
    return headers.get(b"x-amz-target", b"").startswith(TARGET)


def _is_form(headers: Headers) -> bool:
    return headers.get(b"content-type", b"").partition(b";")[0].strip().lower() == FORM


class SqsFamily:
    """How SQS clients authenticate, and the form of their errors."""

    scheme = ""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        keys = authenticator.keys if isinstance(authenticator, KeyAuthenticator) else ()
        self._keys: dict[str, Key] = {key.id: key for key in keys}
        self._json = JsonProtocol()
        self._query = QueryProtocol()

    def authenticate(self, headers: Headers) -> Principal:
        """The key that the request names. Its signature is checked when the body is there."""
        if not isinstance(self._authenticator, KeyAuthenticator):
            # Any page can make a browser send a form; for the header of the other protocol it asks first.
            if b"origin" in headers and not _has_target(headers):
                raise SqsError("AccessDenied", "Forms of web pages may not use a server without keys.")
            return self._authenticator.authenticate(headers)
        key = self._keys.get(parse_authorization(headers.get(b"authorization")).key_id)
        if key is None:
            raise SqsError("InvalidClientTokenId", "The security token included in the request is invalid.")
        return key

    def protocol_of(self, headers: Headers) -> JsonProtocol | QueryProtocol:
        return self._json if _has_target(headers) else self._query

    def reply_error(self, request: Request, error: TopicsError) -> None:
        shown, request_id = as_sqs_error(error), _new_id()
        protocol = self.protocol_of(dict(request.headers[::-1]))
        body, headers = protocol.encode_error(shown, request_id)
        retry = [header for header in headers_of(error) if header[0] == b"Retry-After"]
        request.reply(
            shown.http_status,
            body,
            headers=(*headers, *retry, request_id_header(request_id)),
            content_type=protocol.content_type,
        )

    def error_type(self, status: int) -> Any:
        del status
        return ErrorReply


def _new_id() -> str:
    """For logs of clients; nothing is found by it."""
    return f"{random.getrandbits(128):032x}"


def request_id_header(request_id: str) -> Header:
    return b"x-amzn-RequestId", request_id.encode()


def sqs_routes(
    claims: Claims, engine: Engine, pressure: Pressure, authenticator: Authenticator, clock: Clock, base_path: str
) -> list[Route]:
    """A protocol of others, which OpenAPI does not describe."""
    operations = {
        **QueueOperations(engine, claims.queues, clock).table(),
        **MessageOperations(engine, claims, pressure, clock).table(),
        **MoveOperations(claims.queues, claims.runner, clock).table(),
    }
    scheme = "http" if engine.settings.tls_cert is None else "https"
    return Sqs(SqsFamily(authenticator), operations, clock, base_path, scheme).routes()


class Sqs:
    def __init__(
        self, family: SqsFamily, operations: Mapping[str, Operation], clock: Clock, base_path: str, scheme: str
    ) -> None:
        self._family = family
        self._operations = operations
        self._verifier = Verifier()
        self._clock = clock
        self._base = base_path
        self._scheme = scheme

    def routes(self) -> list[Route]:
        return [
            Route(
                method="POST",
                path="/",
                # Those that change something are refused by the engine.
                changes=False,
                handler=self.handle,
                summary="SQS.",
                family=self._family,
                recognises=recognises,
                body_bytes_max=SENT_BYTES_MAX,
            )
        ]

    def handle(self, call: Call) -> Steps[None]:
        request = call.request
        if len(request.body) > SENT_BYTES_MAX:
            raise _too_long(SENT_BYTES_MAX)
        region = REGION
        if isinstance(call.principal, Key):
            signed = parse_authorization(request.header(b"authorization"))
            region = signed.region
            yield from self._verify(request, signed, call.principal)
        protocol = self._family.protocol_of(call.headers)
        name, body = yield from protocol.operation(request)
        operation = self._operations.get(name)
        if operation is None:
            raise SqsError("InvalidAction", f"The action {name[:64]!r} is not valid for this endpoint.")
        call.principal.check_scopes(operation.scopes)
        if len(request.body) > operation.body_bytes_max:
            raise _too_long(operation.body_bytes_max)
        params = protocol.decode(body, operation.request)
        result = yield from operation.answer(Exchange(call, params, self._home(call), region))
        if isinstance(result, After):
            made = result.result
            result.change.answer(answering(call, lambda call, _: _reply(call, protocol, name, made())))
        else:
            _reply(call, protocol, name, result)

    def _verify(self, request: Request, signed: Signed, key: Key) -> Steps[None]:
        digest = hashlib.sha256(request.body[:HASHED_BYTES])
        for at in range(HASHED_BYTES, len(request.body), HASHED_BYTES):
            yield None
            digest.update(request.body[at : at + HASHED_BYTES])
        path, base = request.raw_path, self._base.encode()
        headers = joined_headers(request.headers)
        signable = Signable(request.method, path, request.query, headers, digest.hexdigest())
        # A proxy may have taken the base path off.
        paths = (base + path, path, *((base,) if path == b"/" else ())) if base else ()
        self._verifier.verify(signable, signed, key.sqs_secret, self._clock.now_ms() / 1000, paths)

    def _home(self, call: Call) -> str:
        """The address of the server as this client knows it."""
        scheme = call.headers.get(b"x-forwarded-proto", b"").decode("latin-1")
        if scheme not in ("http", "https"):
            scheme = self._scheme
        host = call.headers.get(b"host", b"localhost").decode("latin-1")
        return f"{scheme}://{host}{self._base}"


def _reply(call: Call, protocol: JsonProtocol | QueryProtocol, operation: str, result: msgspec.Struct | None) -> None:
    request_id = _new_id()
    body = protocol.encode(operation, result, request_id)
    call.reply(200, body, protocol.content_type, headers=(request_id_header(request_id),))


def _too_long(bytes_max: int) -> SqsError:
    return SqsError("InvalidParameterValue", f"The body of this request must be at most {bytes_max} bytes long.")
