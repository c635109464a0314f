"""Messages over the wire: send, receive, delete, visibility, batches, limits; and the same jobs through /v0."""

import hashlib
import json
import uuid
from typing import Any

import pytest

from tests.serving import Client, ServerProcess
from tests.sqs.wire import Wire, new_name, text, texts

INVALID = (400, "InvalidParameterValue")


def send(wire: Wire, url: str, body: str = "hello", **more: Any) -> Any:
    return wire.json("SendMessage", QueueUrl=url, MessageBody=body, **more)


def receive(wire: Wire, url: str, **more: Any) -> list[Any]:
    return wire.json("ReceiveMessage", QueueUrl=url, **more).get("Messages", [])


def name_of(url: str) -> str:
    return url.rpartition("/")[2]


def test_a_message_is_sent_received_and_deleted(wire: Wire) -> None:
    url = wire.create()
    sent = send(wire, url, "äh \U0001f600")
    assert sent["MD5OfMessageBody"] == hashlib.md5("äh \U0001f600".encode()).hexdigest()
    uuid.UUID(sent["MessageId"])
    (message,) = receive(wire, url)
    assert message["Body"] == "äh \U0001f600"
    assert message["MD5OfBody"] == sent["MD5OfMessageBody"]
    assert message["MessageId"] == sent["MessageId"]
    assert "Attributes" not in message
    assert receive(wire, url) == []
    assert wire.json("DeleteMessage", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"]) == {}
    assert wire.client.state(name_of(url))["count"] == 0
    # a second time: it is gone, which is what was asked for
    wire.json("DeleteMessage", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


def test_attributes_come_back_to_those_who_ask_for_them(wire: Wire) -> None:
    url = wire.create()
    attributes = {
        "trace.id": {"DataType": "String", "StringValue": "a:1"},
        "trace.bytes": {"DataType": "Binary.png", "BinaryValue": "AAEC"},
        "size": {"DataType": "Number", "StringValue": "-12.5e3"},
    }
    header = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-2"}}
    sent = send(wire, url, MessageAttributes=attributes, MessageSystemAttributes=header)
    assert sent["MD5OfMessageSystemAttributes"]
    (message,) = receive(
        wire, url, MessageAttributeNames=["All"], AttributeNames=["All"], VisibilityTimeout=0, MaxNumberOfMessages=10
    )
    assert message["MessageAttributes"] == attributes
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    shown = message["Attributes"]
    assert shown["AWSTraceHeader"] == "Root=1-2"
    assert shown["ApproximateReceiveCount"] == "1"
    assert shown["SenderId"] == "000000000000"
    assert int(shown["SentTimestamp"]) <= int(shown["ApproximateFirstReceiveTimestamp"])
    handle = message["ReceiptHandle"]
    wire.send("ChangeMessageVisibility", {"QueueUrl": url, "ReceiptHandle": handle, "VisibilityTimeout": 0})
    (message,) = receive(
        wire,
        url,
        MessageAttributeNames=["trace.*"],
        MessageSystemAttributeNames=["ApproximateReceiveCount"],
        WaitTimeSeconds=20,
    )
    assert set(message["MessageAttributes"]) == {"trace.id", "trace.bytes"}
    assert message["Attributes"] == {"ApproximateReceiveCount": "2"}


def test_a_long_poll_is_answered_by_the_message_it_waits_for(server: ServerProcess, wire: Wire) -> None:
    url = wire.create()
    client = server.client()
    headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.ReceiveMessage"}
    body = json.dumps({"QueueUrl": url, "WaitTimeSeconds": 20}).encode()
    client._connection.request("POST", "/", body, headers)
    server.settle()
    assert not client.is_answered
    send(wire, url, "at last")
    assert client.end().json["Messages"][0]["Body"] == "at last"


def test_visibility_is_extended_given_up_and_lost(wire: Wire) -> None:
    url = wire.create()
    send(wire, url)
    (message,) = receive(wire, url, VisibilityTimeout=30)
    handle = message["ReceiptHandle"]
    wire.json("ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=43_200)
    (lease,) = wire.client.get(f"/v0/topics/{name_of(url)}/leases").json["leases"]
    assert lease["deadline"] - lease["claimed_ts"] > 43_000_000
    assert receive(wire, url) == []
    wire.json("ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=0)
    change = {"QueueUrl": url, "ReceiptHandle": handle, "VisibilityTimeout": 5}
    assert wire.error("ChangeMessageVisibility", **change) == (400, "AWS.SimpleQueueService.MessageNotInflight")
    (again,) = receive(wire, url)
    assert again["MessageId"] == message["MessageId"]
    # the first handle is not the newest: nothing is deleted
    wire.json("DeleteMessage", QueueUrl=url, ReceiptHandle=handle)
    assert wire.client.state(name_of(url))["count"] == 1
    change = {"QueueUrl": url, "ReceiptHandle": again["ReceiptHandle"], "VisibilityTimeout": 43_201}
    assert wire.error("ChangeMessageVisibility", **change) == INVALID


def test_a_delayed_message_is_not_received_yet(wire: Wire) -> None:
    url = wire.create(DelaySeconds="900")
    send(wire, url, "later")
    send(wire, url, "now", DelaySeconds=0)
    assert [message["Body"] for message in receive(wire, url, MaxNumberOfMessages=10)] == ["now"]
    assert wire.client.state(name_of(url))["queue"]["delayed"] == 1


def test_a_batch_succeeds_and_fails_by_entry(wire: Wire) -> None:
    url = wire.create()
    entries = [
        {"Id": "a", "MessageBody": "one"},
        {"Id": "b", "MessageBody": "bad \u0001"},
        {"Id": "c", "MessageBody": "late", "DelaySeconds": 901},
        {"Id": "d", "MessageBody": "two", "MessageAttributes": {"x": {"DataType": "String", "StringValue": "1"}}},
    ]
    sent = wire.json("SendMessageBatch", QueueUrl=url, Entries=entries)
    assert [entry["Id"] for entry in sent["Successful"]] == ["a", "d"]
    assert "MD5OfMessageAttributes" in sent["Successful"][1]
    failed = {entry["Id"]: (entry["Code"], entry["SenderFault"]) for entry in sent["Failed"]}
    assert failed == {"b": ("InvalidMessageContents", True), "c": ("InvalidParameterValue", True)}
    messages = receive(wire, url, MaxNumberOfMessages=10)
    assert [message["Body"] for message in messages] == ["one", "two"]
    assert [message["MessageId"] for message in messages] == [entry["MessageId"] for entry in sent["Successful"]]
    handles = [message["ReceiptHandle"] for message in messages]
    changes = [
        {"Id": "0", "ReceiptHandle": handles[0], "VisibilityTimeout": 60},
        {"Id": "1", "ReceiptHandle": handles[1], "VisibilityTimeout": 99_999},
        {"Id": "2", "ReceiptHandle": "garbage", "VisibilityTimeout": 60},
    ]
    changed = wire.json("ChangeMessageVisibilityBatch", QueueUrl=url, Entries=changes)
    assert changed["Successful"] == [{"Id": "0"}]
    codes = {entry["Id"]: entry["Code"] for entry in changed["Failed"]}
    assert codes == {"1": "InvalidParameterValue", "2": "ReceiptHandleIsInvalid"}
    gone = [{"Id": str(number), "ReceiptHandle": handle} for number, handle in enumerate([*handles, handles[0], "no"])]
    deleted = wire.json("DeleteMessageBatch", QueueUrl=url, Entries=gone)
    assert [entry["Id"] for entry in deleted["Successful"]] == ["0", "1", "2"]
    assert [entry["Id"] for entry in deleted["Failed"]] == ["3"]
    assert wire.client.state(name_of(url))["count"] == 0


def test_a_batch_that_is_wrong_as_a_whole_is_refused_by_its_code(wire: Wire) -> None:
    url = wire.create()

    def entries(count: int, body: str = "x", **more: Any) -> list[Any]:
        return [{"Id": str(number), "MessageBody": body, **more} for number in range(count)]

    aws = "AWS.SimpleQueueService."
    for wrong, code in (
        ([], "EmptyBatchRequest"),
        (entries(11), "TooManyEntriesInBatchRequest"),
        (entries(600), "TooManyEntriesInBatchRequest"),
        (entries(2, Id="same"), "BatchEntryIdsNotDistinct"),
        (entries(1, Id="not/allowed"), "InvalidBatchEntryId"),
        (entries(10, "x" * 120_000), "BatchRequestTooLong"),
    ):
        assert wire.error("SendMessageBatch", QueueUrl=url, Entries=wrong) == (400, aws + code), code
    assert wire.client.state(name_of(url))["head_seq"] == 0


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"MessageBody": ""}, (400, "MissingParameter")),
        ({}, (400, "MissingParameter")),
        ({"MessageBody": "\u0000"}, (400, "InvalidMessageContents")),
        ({"MessageBody": "\uffff"}, (400, "InvalidMessageContents")),
        ({"MessageBody": "x" * 262_145}, INVALID),
        ({"MessageBody": "x", "DelaySeconds": -1}, INVALID),
        ({"MessageBody": "x", "DelaySeconds": 901}, INVALID),
        ({"MessageBody": "x", "MessageDeduplicationId": "only-fifo"}, INVALID),
        ({"MessageBody": "x", "MessageGroupId": "a b"}, INVALID),
        ({"MessageBody": "x", "MessageAttributes": {"a..b": {"DataType": "String", "StringValue": "x"}}}, INVALID),
        ({"MessageBody": "x", "MessageAttributes": {"AWS.x": {"DataType": "String", "StringValue": "x"}}}, INVALID),
        ({"MessageBody": "x", "MessageAttributes": {"a": {"DataType": "Text", "StringValue": "x"}}}, INVALID),
        ({"MessageBody": "x", "MessageAttributes": {"a": {"DataType": "Number", "StringValue": "x"}}}, INVALID),
        ({"MessageBody": "x", "MessageAttributes": {"a": {"DataType": "Binary", "BinaryValue": "?"}}}, INVALID),
        ({"MessageBody": "x", "MessageAttributes": {"a": {"DataType": "String"}}}, INVALID),
        ({"MessageBody": "x", "MessageAttributes": {"a": {"DataType": "String.\u001b", "StringValue": "x"}}}, INVALID),
        (
            {
                "MessageBody": "x",
                "MessageAttributes": {str(n): {"DataType": "String", "StringValue": "x"} for n in range(11)},
            },
            INVALID,
        ),
    ],
)
def test_a_message_beyond_a_limit_is_refused(wire: Wire, params: dict[str, Any], expected: tuple[int, str]) -> None:
    assert wire.error("SendMessage", QueueUrl=wire.create(), **params) == expected


def test_the_size_limit_counts_bytes_and_attributes_and_can_be_set(wire: Wire) -> None:
    url = wire.create(MaximumMessageSize="1024")
    send(wire, url, "x" * 1024)
    assert wire.error("SendMessage", QueueUrl=url, MessageBody="ä" * 513) == INVALID
    attributes = {"a": {"DataType": "String", "StringValue": "x"}}
    assert wire.error("SendMessage", QueueUrl=url, MessageBody="x" * 1017, MessageAttributes=attributes) == INVALID
    send(wire, url, "x" * 1016, MessageAttributes=attributes)
    wire.json("SetQueueAttributes", QueueUrl=url, Attributes={"MaximumMessageSize": "1048576"})
    large = send(wire, url, "z" * 1_040_000)
    assert large["MD5OfMessageBody"] == hashlib.md5(b"z" * 1_040_000).hexdigest()
    bodies = [message["Body"] for message in receive(wire, url, MaxNumberOfMessages=10)]
    assert [len(body) for body in bodies] == [1024, 1016, 1_040_000]


@pytest.mark.parametrize(
    "params",
    [
        {"MaxNumberOfMessages": 0},
        {"MaxNumberOfMessages": 11},
        {"WaitTimeSeconds": 21},
        {"WaitTimeSeconds": -1},
        {"VisibilityTimeout": 43_201},
    ],
)
def test_a_receive_beyond_a_limit_is_refused(wire: Wire, params: dict[str, Any]) -> None:
    assert wire.error("ReceiveMessage", QueueUrl=wire.create(), **params) == INVALID


def test_handles_that_are_none_are_refused(wire: Wire) -> None:
    url, other = wire.create(), wire.create()
    send(wire, other)
    (message,) = receive(wire, other)
    for handle in ("", "garbage", message["ReceiptHandle"]):
        assert wire.error("DeleteMessage", QueueUrl=url, ReceiptHandle=handle) == (400, "ReceiptHandleIsInvalid")


# --- FIFO queues ---


def fifo(wire: Wire, **attributes: str) -> str:
    return wire.create(new_name() + ".fifo", FifoQueue="true", **attributes)


def test_a_fifo_queue_gives_out_a_group_one_by_one_and_takes_a_message_once(wire: Wire) -> None:
    url = fifo(wire)
    for number, group in enumerate("aabb"):
        sent = send(wire, url, f"{group}{number}", MessageGroupId=group, MessageDeduplicationId=str(number))
        assert len(sent["SequenceNumber"]) == 20
        again = send(wire, url, "another body", MessageGroupId=group, MessageDeduplicationId=str(number))
        assert (again["MessageId"], again["SequenceNumber"]) == (sent["MessageId"], sent["SequenceNumber"])
    assert wire.client.state(name_of(url))["config"]["max_in_flight_per_tag"] == 1
    messages = receive(wire, url, MaxNumberOfMessages=10, AttributeNames=["All"])
    assert [message["Body"] for message in messages] == ["a0", "b2"]
    shown = messages[1]["Attributes"]
    assert (shown["MessageGroupId"], shown["MessageDeduplicationId"]) == ("b", "2")
    assert shown["SequenceNumber"] == f"{3:020d}"
    assert receive(wire, url, MaxNumberOfMessages=10) == []
    wire.json("DeleteMessage", QueueUrl=url, ReceiptHandle=messages[0]["ReceiptHandle"])
    assert [message["Body"] for message in receive(wire, url, MaxNumberOfMessages=10)] == ["a1"]
    gone = {"QueueUrl": url, "ReceiptHandle": messages[0]["ReceiptHandle"]}
    assert wire.error("DeleteMessage", **gone) == INVALID


def test_a_batch_for_a_fifo_queue_is_deduplicated_by_entry(wire: Wire) -> None:
    url = fifo(wire)
    entries = [
        {"Id": str(number), "MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": str(number % 2)}
        for number in range(4)
    ]
    sent = wire.json("SendMessageBatch", QueueUrl=url, Entries=entries)
    ids = [entry["MessageId"] for entry in sent["Successful"]]
    assert (ids[0], ids[1]) == (ids[2], ids[3])
    assert ids[0] != ids[1]
    assert wire.client.state(name_of(url))["count"] == 2


def test_a_fifo_queue_deduplicates_by_content_and_by_group_if_told_to(wire: Wire) -> None:
    url = fifo(wire, ContentBasedDeduplication="true", DeduplicationScope="messageGroup")
    for group in ("a", "b", "a"):
        send(wire, url, "same", MessageGroupId=group)
    assert wire.client.state(name_of(url))["count"] == 2
    (message,) = receive(wire, url, AttributeNames=["MessageDeduplicationId"])
    assert message["Attributes"]["MessageDeduplicationId"] == hashlib.sha256(b"same").hexdigest()


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"MessageDeduplicationId": "1"}, (400, "MissingParameter")),
        ({"MessageGroupId": "g"}, INVALID),
        ({"MessageGroupId": "g", "MessageDeduplicationId": "1", "DelaySeconds": 5}, INVALID),
        ({"MessageGroupId": "g", "MessageDeduplicationId": "x" * 129}, INVALID),
    ],
)
def test_a_message_for_a_fifo_queue_needs_a_group_and_an_id(
    wire: Wire, params: dict[str, Any], expected: tuple[int, str]
) -> None:
    assert wire.error("SendMessage", QueueUrl=fifo(wire), MessageBody="x", **params) == expected


# --- the same jobs through /v0 ---


def test_a_job_of_v0_is_a_message_and_a_message_is_a_job_of_v0(client: Client, wire: Wire) -> None:
    url = wire.create()
    name = name_of(url)
    records = [
        {"data": {"a": [1, 2.50]}},
        {"data": "plain text"},
        {"data": 5, "tag": "t"},
        {"data": "bell \u0007"},
        {"data": None, "meta": {"sqs": "not ours", "other": 1}},
    ]
    assert client.post(f"/v0/topics/{name}", {"records": records}).status == 200
    messages = receive(
        wire, url, MaxNumberOfMessages=10, AttributeNames=["MessageGroupId"], MessageAttributeNames=["All"]
    )
    assert [message["Body"] for message in messages] == ['{"a": [1, 2.5]}', "plain text", "5", '"bell \\u0007"', "null"]
    assert messages[2]["Attributes"] == {"MessageGroupId": "t"}
    for message in messages:
        wire.json("DeleteMessage", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    attributes = {"k": {"DataType": "String", "StringValue": "v"}}
    send(wire, url, '{"from": "sqs"}', MessageAttributes=attributes, MessageGroupId="g")
    send(wire, url, "words")
    claimed = client.post(f"/v0/topics/{name}/claim", {"node": "worker", "max": 10}).json["claimed"]
    assert [job["data"] for job in claimed] == [{"from": "sqs"}, "words"]
    assert claimed[0]["meta"] == {"sqs": {"MessageAttributes": attributes}}
    assert claimed[0]["$tag"] == "g"
    ack = {"node": "worker", "seqs": [job["$seq"] for job in claimed]}
    assert client.post(f"/v0/topics/{name}/ack", ack).json["acked"] == 2


def test_a_tag_that_xml_cannot_carry_is_received_in_the_older_protocol(client: Client, wire: Wire) -> None:
    url = wire.create()
    assert client.post(f"/v0/topics/{name_of(url)}", {"records": [{"data": 1, "tag": "a\u0007"}]}).status == 200
    received = wire.xml("ReceiveMessage", QueueUrl=url, AttributeName__1="MessageGroupId")
    assert texts(received, "Message/Attribute/Value") == ["a\ufffd"]


# --- the older protocol ---


def test_the_older_protocol_has_the_same_fields_in_a_form_and_xml(wire: Wire) -> None:
    url = wire.create()
    path = "/000000000000/" + name_of(url)
    body = "a & b < c\r\nä \U0001f600"
    sent = wire.xml(
        "SendMessage",
        path,
        MessageBody=body,
        MessageAttribute__1__Name="k",
        MessageAttribute__1__Value__DataType="String",
        MessageAttribute__1__Value__StringValue="v<",
    )
    assert text(sent, "MD5OfMessageBody") == hashlib.md5(body.encode()).hexdigest()
    received = wire.xml(
        "ReceiveMessage", path, MaxNumberOfMessages="10", AttributeName__1="All", MessageAttributeName__1="All"
    )
    assert texts(received, "Message/Body") == [body]
    assert texts(received, "Message/MessageAttribute/Value/StringValue") == ["v<"]
    assert text(received, "Message/MD5OfMessageAttributes") == text(sent, "MD5OfMessageAttributes")
    names = texts(received, "Message/Attribute/Name")
    assert "ApproximateReceiveCount" in names
    handle = text(received, "Message/ReceiptHandle")
    wire.xml("ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout="60")
    wire.xml("DeleteMessage", QueueUrl=url, ReceiptHandle=handle)
    assert texts(wire.xml("ReceiveMessage", path), "Message") == []
    entries = {
        f"SendMessageBatchRequestEntry__{number}__{field}": value
        for number, fields in enumerate(({"Id": "x", "MessageBody": "1"}, {"Id": "y", "MessageBody": "\ufffe"}), 1)
        for field, value in fields.items()
    }
    batch = wire.xml("SendMessageBatch", path, **entries)
    assert texts(batch, "SendMessageBatchResultEntry/Id") == ["x"]
    assert texts(batch, "BatchResultErrorEntry/Code") == ["InvalidMessageContents"]
    assert texts(batch, "BatchResultErrorEntry/SenderFault") == ["true"]
    handle = text(wire.xml("ReceiveMessage", path), "Message/ReceiptHandle")
    deleted = wire.xml(
        "DeleteMessageBatch",
        path,
        DeleteMessageBatchRequestEntry__1__Id="z",
        DeleteMessageBatchRequestEntry__1__ReceiptHandle=handle,
    )
    assert texts(deleted, "DeleteMessageBatchResultEntry/Id") == ["z"]
