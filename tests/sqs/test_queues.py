"""Queues over the wire: create, find, list, attributes, tags, purge, dead letters; and what is not SQS at `/`."""

import json
from typing import Any

import pytest

from tests.serving import Client
from tests.sqs.wire import NAMESPACE, Wire, new_name, text, texts

ABSENT = (400, "AWS.SimpleQueueService.NonExistentQueue")
ARN = "arn:aws:sqs:us-east-1:000000000000:"


def name_of(url: str) -> str:
    return url.rpartition("/")[2]


def attributes_of(wire: Wire, url: str, *names: str) -> dict[str, str]:
    return wire.json("GetQueueAttributes", QueueUrl=url, AttributeNames=names or ("All",))["Attributes"]


def test_a_queue_is_created_found_and_removed(wire: Wire) -> None:
    name = new_name()
    url = wire.create(name)
    assert url == f"http://127.0.0.1:{wire.client.port}/000000000000/{name}"
    assert wire.json("GetQueueUrl", QueueName=name) == {"QueueUrl": url}
    config = wire.client.state(name)["config"]
    assert (config["type"], config["lease_ms"], config["ttl_ms"]) == ("queue", 30_000, 345_600_000)
    assert config["leases_durable"] is True
    assert wire.json("DeleteQueue", QueueUrl=url) == {}
    assert wire.client.get(f"/v0/topics/{name}").status == 404


def test_what_does_not_exist_or_is_not_a_queue_is_a_queue_that_does_not_exist(wire: Wire) -> None:
    log = new_name("log")
    wire.client.append(log, 1)
    for name in ("absent", log):
        url = f"http://x/000000000000/{name}"
        assert wire.error("GetQueueUrl", QueueName=name) == ABSENT
        for operation in ("DeleteQueue", "PurgeQueue", "GetQueueAttributes", "ListQueueTags", "ReceiveMessage"):
            assert wire.error(operation, QueueUrl=url) == ABSENT, operation
        assert wire.error("SendMessage", QueueUrl=url, MessageBody="x") == ABSENT
    reply = wire.send("GetQueueUrl", {"QueueName": "absent"})
    assert reply.json["__type"] == "com.amazonaws.sqs#QueueDoesNotExist"
    assert wire.error("GetQueueUrl", QueueName="not a name") == ABSENT


def test_creating_again_confirms_or_says_what_differs(wire: Wire) -> None:
    name = new_name()
    url = wire.create(name, VisibilityTimeout="60", DelaySeconds="5")
    for attributes in ({}, {"VisibilityTimeout": "60"}, {"DelaySeconds": "5", "MaximumMessageSize": "262144"}):
        assert wire.create(name, **attributes) == url
    for attributes in ({"VisibilityTimeout": "61"}, {"DelaySeconds": "0"}, {"MessageRetentionPeriod": "60"}):
        assert wire.error("CreateQueue", QueueName=name, Attributes=attributes) == (400, "QueueAlreadyExists")
    log = new_name("log")
    wire.client.append(log, 1)
    assert wire.error("CreateQueue", QueueName=log) == (400, "QueueAlreadyExists")


@pytest.mark.parametrize("name", ["", "a b", "-first", "x" * 81, "ä", "a/b"])
def test_a_name_that_cannot_be_used_is_refused(wire: Wire, name: str) -> None:
    assert wire.error("CreateQueue", QueueName=name) == (400, "InvalidParameterValue")


@pytest.mark.parametrize(
    ("attributes", "code"),
    [
        ({"VisibilityTimeout": "43201"}, "InvalidAttributeValue"),
        ({"VisibilityTimeout": "x"}, "InvalidAttributeValue"),
        ({"DelaySeconds": "901"}, "InvalidAttributeValue"),
        ({"MaximumMessageSize": "1023"}, "InvalidAttributeValue"),
        ({"MessageRetentionPeriod": "59"}, "InvalidAttributeValue"),
        ({"ReceiveMessageWaitTimeSeconds": "21"}, "InvalidAttributeValue"),
        ({"KmsMasterKeyId": "alias/aws/sqs"}, "InvalidAttributeValue"),
        ({"Policy": "{}"}, "InvalidAttributeValue"),
        ({"SqsManagedSseEnabled": "true"}, "InvalidAttributeValue"),
        ({"RedrivePolicy": "{"}, "InvalidAttributeValue"),
        ({"RedrivePolicy": '{"deadLetterTargetArn":"no arn","maxReceiveCount":1}'}, "InvalidParameterValue"),
        ({"ContentBasedDeduplication": "true"}, "InvalidAttributeName"),
        ({"Colour": "red"}, "InvalidAttributeName"),
        ({"FifoQueue": "true"}, "InvalidParameterValue"),
    ],
)
def test_an_attribute_that_cannot_be_set_is_refused(wire: Wire, attributes: dict[str, str], code: str) -> None:
    name = new_name()
    assert wire.error("CreateQueue", QueueName=name, Attributes=attributes) == (400, code)
    assert wire.error("GetQueueUrl", QueueName=name) == ABSENT


def test_attributes_are_shown_set_and_are_the_configuration(wire: Wire) -> None:
    url = wire.create()
    shown = attributes_of(wire, url)
    assert shown["QueueArn"] == ARN + name_of(url)
    assert (shown["VisibilityTimeout"], shown["MessageRetentionPeriod"]) == ("30", "345600")
    assert (shown["DelaySeconds"], shown["MaximumMessageSize"]) == ("0", "262144")
    created = int(shown["CreatedTimestamp"])
    assert created > 1_600_000_000
    changed = {"VisibilityTimeout": "0", "DelaySeconds": "7", "ReceiveMessageWaitTimeSeconds": "1"}
    assert wire.json("SetQueueAttributes", QueueUrl=url, Attributes=changed) == {}
    shown = attributes_of(wire, url, *changed, "LastModifiedTimestamp")
    assert int(shown.pop("LastModifiedTimestamp")) >= created
    assert shown == changed
    state = wire.client.state(name_of(url))["config"]
    assert (state["lease_ms"], state["sqs"]["attributes"]["DelaySeconds"]) == (100, "7")
    # fields of /v0 are attributes, whoever has set them
    assert wire.client.request("PATCH", f"/v0/topics/{name_of(url)}", {"lease_ms": 90_000, "ttl_ms": 0}).status == 200
    assert attributes_of(wire, url, "VisibilityTimeout", "MessageRetentionPeriod", "DelaySeconds") == {
        "VisibilityTimeout": "90",
        "MessageRetentionPeriod": "1209600",
        "DelaySeconds": "7",
    }
    assert wire.json("GetQueueAttributes", QueueUrl=url) == {"Attributes": {}}
    unknown = {"QueueUrl": url, "AttributeNames": ["Colour"]}
    assert wire.error("GetQueueAttributes", **unknown) == (400, "InvalidAttributeName")
    for fixed in ({"QueueArn": "x"}, {"FifoQueue": "true"}):
        assert wire.error("SetQueueAttributes", QueueUrl=url, Attributes=fixed) == (400, "InvalidAttributeName")


def test_messages_are_counted_by_their_state_and_purged_together(wire: Wire) -> None:
    url = wire.create()
    for delay_s in (0, 0, 0, 900):
        wire.json("SendMessage", QueueUrl=url, MessageBody="x", DelaySeconds=delay_s)
    wire.json("ReceiveMessage", QueueUrl=url)
    counts = [f"ApproximateNumberOfMessages{kind}" for kind in ("", "NotVisible", "Delayed")]
    assert attributes_of(wire, url, *counts) == dict(zip(counts, "211", strict=True))
    wire.json("PurgeQueue", QueueUrl=url)
    assert set(attributes_of(wire, url, *counts).values()) == {"0"}


def test_queues_are_listed_by_prefix_and_page(wire: Wire) -> None:
    prefix = new_name("listed") + "-"
    urls = [wire.create(f"{prefix}{letter}") for letter in "abc"]
    wire.client.append(f"{prefix}log", 1)
    assert wire.json("ListQueues", QueueNamePrefix=prefix) == {"QueueUrls": urls}
    page = wire.json("ListQueues", QueueNamePrefix=prefix, MaxResults=2)
    assert page["QueueUrls"] == urls[:2]
    rest = wire.json("ListQueues", QueueNamePrefix=prefix, MaxResults=2, NextToken=page["NextToken"])
    assert rest == {"QueueUrls": urls[2:]}
    assert wire.error("ListQueues", MaxResults=1001) == (400, "InvalidParameterValue")
    assert wire.error("ListQueues", MaxResults=1, NextToken="garbage") == (400, "InvalidParameterValue")


def test_tags_are_kept_with_the_queue(wire: Wire) -> None:
    name = new_name()
    url = wire.json("CreateQueue", QueueName=name, tags={"team": "a"})["QueueUrl"]
    wire.json("TagQueue", QueueUrl=url, Tags={"cost": "1", "team": "b"})
    wire.json("SetQueueAttributes", QueueUrl=url, Attributes={"DelaySeconds": "1"})
    assert wire.json("ListQueueTags", QueueUrl=url) == {"Tags": {"team": "b", "cost": "1"}}
    wire.json("UntagQueue", QueueUrl=url, TagKeys=["team", "absent"])
    assert wire.json("ListQueueTags", QueueUrl=url) == {"Tags": {"cost": "1"}}
    many = {str(number): "x" for number in range(51)}
    assert wire.error("TagQueue", QueueUrl=url, Tags=many) == (400, "InvalidParameterValue")
    assert wire.error("AddPermission", QueueUrl=url) == (400, "AWS.SimpleQueueService.UnsupportedOperation")


# --- dead letters ---


def with_dead_letters(wire: Wire, receives: int = 1) -> tuple[str, str]:
    dead = wire.create(new_name("dead"))
    policy = json.dumps({"deadLetterTargetArn": ARN + name_of(dead), "maxReceiveCount": receives})
    return wire.create(new_name(), RedrivePolicy=policy), dead


def bury(wire: Wire, url: str, *bodies: str) -> None:
    for body in bodies:
        wire.json("SendMessage", QueueUrl=url, MessageBody=body)
    for message in wire.json("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10)["Messages"]:
        handle = message["ReceiptHandle"]
        wire.json("ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=0)
    # the receive that finds them moves them
    assert wire.json("ReceiveMessage", QueueUrl=url) == {}
    dead = wire.client.state(name_of(url))["config"]["dead_letter"]
    while wire.client.state(dead)["count"] < len(bodies):
        pass


def test_a_message_that_was_received_too_often_is_in_the_dead_letter_queue(wire: Wire) -> None:
    url, dead = with_dead_letters(wire)
    assert json.loads(attributes_of(wire, url)["RedrivePolicy"])["maxReceiveCount"] == 1
    assert wire.json("ListDeadLetterSourceQueues", QueueUrl=dead) == {"queueUrls": [url]}
    bury(wire, url, "bad")
    (message,) = wire.json("ReceiveMessage", QueueUrl=dead, AttributeNames=["All"])["Messages"]
    assert message["Body"] == "bad"
    assert message["Attributes"]["DeadLetterQueueSourceArn"] == ARN + name_of(url)
    wire.json("SetQueueAttributes", QueueUrl=url, Attributes={"RedrivePolicy": ""})
    assert "RedrivePolicy" not in attributes_of(wire, url)
    assert wire.json("ListDeadLetterSourceQueues", QueueUrl=dead) == {"queueUrls": []}


def test_a_dead_letter_queue_decides_whose_it_is(wire: Wire) -> None:
    dead = wire.create(RedriveAllowPolicy='{"redrivePermission":"denyAll"}')
    policy = {"RedrivePolicy": json.dumps({"deadLetterTargetArn": ARN + name_of(dead), "maxReceiveCount": "3"})}
    assert wire.error("CreateQueue", QueueName=new_name(), Attributes=policy) == (400, "InvalidAttributeValue")
    name = new_name()
    allowed = json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": [ARN + name]})
    wire.json("SetQueueAttributes", QueueUrl=dead, Attributes={"RedriveAllowPolicy": allowed})
    wire.create(name, **policy)
    absent = {"RedrivePolicy": json.dumps({"deadLetterTargetArn": ARN + "absent", "maxReceiveCount": 3})}
    assert wire.error("CreateQueue", QueueName=new_name(), Attributes=absent) == (400, "InvalidAttributeValue")


def moved(wire: Wire, source: str) -> Any:
    """The newest task, once it has ended."""
    while True:
        (task,) = wire.json("ListMessageMoveTasks", SourceArn=ARN + name_of(source))["Results"]
        if task["Status"] != "RUNNING":
            return task


def test_dead_letters_move_back_or_to_another_queue(wire: Wire) -> None:
    url, dead = with_dead_letters(wire)
    bury(wire, url, "a", "b")
    wire.json("StartMessageMoveTask", SourceArn=ARN + name_of(dead), MaxNumberOfMessagesPerSecond=500)
    task = moved(wire, dead)
    assert (task["Status"], task["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 2)
    assert "TaskHandle" not in task
    bodies = [
        message["Body"]
        for _ in range(2)
        for message in wire.json("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20)["Messages"]
    ]
    assert sorted(bodies) == ["a", "b"]
    other = wire.create()
    wire.json("SendMessage", QueueUrl=dead, MessageBody="sent there")
    wire.json("StartMessageMoveTask", SourceArn=ARN + name_of(dead), DestinationArn=ARN + name_of(other))
    assert moved(wire, dead)["ApproximateNumberOfMessagesMoved"] == 1
    assert wire.json("ReceiveMessage", QueueUrl=other)["Messages"][0]["Body"] == "sent there"
    assert wire.error("CancelMessageMoveTask", TaskHandle="none") == (400, "ResourceNotFoundException")
    absent = {"SourceArn": ARN + "absent"}
    assert wire.error("StartMessageMoveTask", **absent) == (400, "ResourceNotFoundException")


# --- the protocol ---


def test_unknown_fields_are_ignored_and_numbers_may_be_text(wire: Wire) -> None:
    url = wire.create()
    wire.json("SendMessage", QueueUrl=url, MessageBody="x", DelaySeconds="0", Colour={"deep": [1]})
    assert wire.json("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages="2", New=1)["Messages"]


@pytest.mark.parametrize(
    ("operation", "body", "code"),
    [
        ("Nonsense", b"{}", "InvalidAction"),
        ("SendMessage", b"{", "SerializationException"),
        ("SendMessage", b"\xff", "SerializationException"),
        ("SendMessage", b'{"MessageBody":"\xff"}', "SerializationException"),
        ("SendMessage", b"[" * 100_000, "InvalidParameterValue"),
        ("SendMessage", b'{"x":' * 100_000, "SerializationException"),
        ("SendMessage", b"[]", "InvalidParameterValue"),
        ("SendMessage", b'{"MessageBody":"x"}', "MissingParameter"),
        ("SendMessage", b'{"MessageBody":5,"QueueUrl":"a/b"}', "InvalidParameterValue"),
        ("ListQueues", b'{"x":"' + b"x" * 300_000 + b'"}', "InvalidParameterValue"),
        ("DeleteQueue", b'{"QueueUrl":"/"}', "InvalidAddress"),
    ],
)
def test_garbage_is_refused_in_the_form_of_the_protocol(wire: Wire, operation: str, body: bytes, code: str) -> None:
    reply = wire.send(operation, body)
    assert (reply.status, reply.json["__type"]) == (400, f"com.amazonaws.sqs#{code}"), reply


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"Action=Nonsense", "InvalidAction"),
        (b"Action=", "InvalidAction"),
        (b"Action=SendMessage&MessageBody=x", "MissingParameter"),
        (b"Action=ListQueues&x=%ff", "MalformedQueryString"),
        (b"Action=ListQueues" + b"&a=b" * 2_000, "MalformedQueryString"),
        (b"Action=TagQueue&Tag=1&Tag.1.Key=a", "MissingParameter"),
        (b"Action=TagQueue&QueueUrl=a/b&Tag" + b".1" * 100_000 + b"=x", "MissingParameter"),
        (b"Action=TagQueue&QueueUrl=a/absent&Tag.1.Key.x=1", "AWS.SimpleQueueService.NonExistentQueue"),
        (b"Action=ReceiveMessage&QueueUrl=a/absent&MaxNumberOfMessages=many", "InvalidParameterValue"),
        (b"Action=DeleteQueue&QueueUrl=a/absent", "AWS.SimpleQueueService.NonExistentQueue"),
    ],
)
def test_garbage_in_the_older_protocol_is_refused_in_xml(wire: Wire, body: bytes, code: str) -> None:
    import xml.etree.ElementTree as ET

    reply = wire.post("/", body, {"Content-Type": "application/x-www-form-urlencoded"})
    assert reply.status == 400
    root = ET.fromstring(reply.body)
    assert root.tag == f"{NAMESPACE}ErrorResponse"
    assert (text(root, "Error/Code"), text(root, "Error/Type")) == (code, "Sender")


def test_a_tag_of_characters_that_xml_cannot_carry_is_refused(wire: Wire) -> None:
    url = wire.create()
    for tags in ({"a\u0007": "b"}, {"a": "b\uffff"}):
        assert wire.error("TagQueue", QueueUrl=url, Tags=tags) == (400, "InvalidParameterValue")
        assert wire.error("CreateQueue", QueueName=new_name(), tags=tags) == (400, "InvalidParameterValue")
    assert wire.json("ListQueueTags", QueueUrl=url) == {"Tags": {}}


def test_an_error_repeats_an_address_only_in_part(wire: Wire) -> None:
    long = "x" * 100_000
    for operation, params in {
        "ReceiveMessage": {"QueueUrl": long + "/" * 10},
        "DeleteQueue": {"QueueUrl": long},
        "GetQueueUrl": {"QueueName": long},
        "PurgeQueue": {"QueueUrl": "/" * 100_000},
        "StartMessageMoveTask": {"SourceArn": long},
        "ListMessageMoveTasks": {"SourceArn": f"arn:aws:sqs:r:0:{long}"},
        "CreateQueue": {
            "QueueName": new_name(),
            "Attributes": {"RedrivePolicy": f'{{"deadLetterTargetArn":"{long}"}}'},
        },
    }.items():
        reply = wire.send(operation, params)
        assert (reply.status, len(reply.body) < 1_000) == (400, True), operation


def test_the_older_protocol_manages_queues(wire: Wire) -> None:
    name = new_name()
    created = wire.xml(
        "CreateQueue",
        QueueName=name,
        Attribute__1__Name="DelaySeconds",
        Attribute__1__Value="3",
        Tag__1__Key="team",
        Tag__1__Value="a",
    )
    url = text(created, "QueueUrl") or ""
    assert texts(wire.xml("ListQueues", QueueNamePrefix=name), "QueueUrl") == [url]
    shown = wire.xml("GetQueueAttributes", QueueUrl=url, AttributeName__1="DelaySeconds")
    assert (texts(shown, "Attribute/Name"), texts(shown, "Attribute/Value")) == (["DelaySeconds"], ["3"])
    wire.xml("TagQueue", QueueUrl=url, Tag__1__Key="b", Tag__1__Value="<c>")
    assert texts(wire.xml("ListQueueTags", QueueUrl=url), "Tag/Value") == ["a", "<c>"]
    wire.xml("UntagQueue", QueueUrl=url, TagKey__1="b", TagKey__2="team")
    assert texts(wire.xml("ListQueueTags", QueueUrl=url), "Tag/Key") == []
    wire.xml("SetQueueAttributes", QueueUrl=url, Attribute__1__Name="DelaySeconds", Attribute__1__Value="0")
    wire.xml("PurgeQueue", QueueUrl=url)
    wire.xml("DeleteQueue", QueueUrl=url)


def test_other_requests_to_the_same_paths_get_what_they_always_got(client: Client) -> None:
    assert client.get("/").status == 404
    assert client.get("/", headers={"Accept": "text/html"}).status == 302
    assert client.post("/", {"a": 1}).code == "method_not_allowed"
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert client.request("POST", "/", body=b"a=b", headers=form).code == "method_not_allowed"
    assert client.request("POST", "/000000000000/queue", body=b"a=b", headers=form).code == "not_found"
    assert client.get("/000000000000/queue").code == "not_found"
    target = {"X-Amz-Target": "DynamoDB_20120810.ListTables"}
    assert client.request("POST", "/", body=b"{}", headers=target).code == "method_not_allowed"
    target = {"X-Amz-Target": "AmazonSQS.ListQueues", "Content-Type": "application/json"}
    assert client.request("POST", "/v0/topics/x", body=b"{}", headers=target).code == "invalid_request"
    assert client.request("POST", "/v0/nowhere", body=b"{}", headers=target).code == "not_found"


def test_a_web_page_of_another_site_cannot_use_a_server_without_keys(wire: Wire) -> None:
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Host": "evil.example"}):
        reply = wire.send("ListQueues", {}, headers=headers)
        assert (reply.status, reply.json["__type"]) == (403, "com.amazonaws.sqs#AccessDenied")


def test_any_signature_is_accepted_by_a_server_without_keys(wire: Wire) -> None:
    headers = {"Authorization": "AWS4-HMAC-SHA256 Credential=any, whatever"}
    assert wire.send("ListQueues", {}, headers=headers).status == 200
