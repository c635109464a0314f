"""What SQS clients send: signatures, bodies of both protocols, messages and receipt handles."""

from __future__ import annotations

import contextlib
from typing import Any, cast
from xml.etree import ElementTree as ET

from tests.fuzz.decoders import run_through
from topics.api.sqs.errors import SqsError
from topics.api.sqs.json_protocol import JsonProtocol
from topics.api.sqs.messages import body_of, handle_of, parse_handle, prepare
from topics.api.sqs.query_protocol import QueryProtocol
from topics.api.sqs.requests import (
    ChangeMessageVisibilityBatch,
    CreateQueue,
    Outgoing,
    QueueAttributes,
    ReceiveMessage,
    SendMessage,
    SendMessageBatch,
)
from topics.api.sqs.signature import Signable, Verifier, parse_authorization
from topics.engine.log.topic import Topic
from topics.http.request import Request
from topics.model.requests.config import TopicConfig

SHAPES = (SendMessage, SendMessageBatch, ReceiveMessage, CreateQueue, ChangeMessageVisibilityBatch)
QUEUE = Topic(1, "jobs", 7 << 40, TopicConfig(type="queue"), 0)


def read_request(data: bytes) -> None:
    """Refused by a code of SQS, or read; a message that is read comes back as it was sent."""
    request = Request(cast("Any", None), "POST", "1.1", [(b"x-amz-target", b"AmazonSQS.SendMessage")])
    request.body = data
    for protocol in (JsonProtocol(), QueryProtocol()):
        with contextlib.suppress(SqsError):
            _, body = run_through(protocol.operation(request))
            for shape in SHAPES:
                with contextlib.suppress(SqsError):
                    _use(protocol.decode(body, shape))


def _use(params: Any) -> None:
    for message in [*getattr(params, "entries", ()), params]:
        if isinstance(message, Outgoing):
            with contextlib.suppress(SqsError):
                assert body_of(prepare(QUEUE, message).record.data) == message.message_body
    if isinstance(params, CreateQueue) and all(text.isprintable() for text in (params.attributes or {}).values()):
        shown = {name: text for name, text in (params.attributes or {}).items() if name.isprintable()}
        ET.fromstring(QueryProtocol().encode("GetQueueAttributes", QueueAttributes(shown), "id"))


def request_seeds() -> list[bytes]:
    return [
        b'{"QueueUrl":"q","MessageBody":"{\\"a\\":1}","MessageAttributes":{"k":{"DataType":"Binary","BinaryValue":"AA=="}}}',
        b'{"QueueUrl":"q","Entries":[{"Id":"1","MessageBody":"x","DelaySeconds":"5"}]}',
        b'{"QueueName":"q","Attributes":{"DelaySeconds":"5"},"tags":{"a":"b"}}',
        b"Action=SendMessage&MessageBody=x%20y&MessageAttribute.1.Name=k&MessageAttribute.1.Value.DataType=Binary",
        b"Action=CreateQueue&QueueName=q&Attribute.1.Name=a&Attribute.1.Value=%3Cb&Tag.1.Key=k&Tag.1.Value=v",
        b"Action=SendMessageBatch&SendMessageBatchRequestEntry.2.Id=a&SendMessageBatchRequestEntry.2.MessageBody=b",
    ]


def read_signature(data: bytes) -> None:
    """Nothing but a signature by the secret is accepted, whatever the header and the time say."""
    header, _, time = data.partition(b"\n")
    with contextlib.suppress(SqsError):
        signed = parse_authorization(header)
        request = Signable("POST", b"/", b"a=b", {b"host": b"h", b"x-amz-date": time}, "00")
        Verifier().verify(request, signed, "secret", 1_440_938_160.0)
        raise AssertionError(header)
    with contextlib.suppress(SqsError):
        handle = parse_handle(QUEUE, data.decode("latin-1"))
        assert parse_handle(QUEUE, handle_of(QUEUE, *handle)) == handle


def signature_seeds() -> list[bytes]:
    scope = (
        b"AWS4-HMAC-SHA256 Credential=id/20150830/us-east-1/sqs/aws4_request, SignedHeaders=host;x-amz-date, Signature="
    )
    return [scope + b"0" * 64 + b"\n20150830T123600Z", handle_of(QUEUE, 5, "lease_ab").encode()]
