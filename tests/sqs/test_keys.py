"""Keys over SQS: signatures, scopes and prefixes; no request does anything before its signature is checked."""

import json
import time
from collections.abc import Iterator

import pytest

from tests.serving import ServerProcess, serving
from tests.sqs.wire import Wire, new_name, signed

ROOT_KEY, READER, WORKER = "root-secret", "reader-secret", "worker-secret"
NO_MATCH = (403, "SignatureDoesNotMatch")
DENIED = (403, "AccessDenied")


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    keys = f"{ROOT_KEY},{READER}:read,{WORKER}:rw:team-"
    with serving(tmp_path_factory.mktemp("data"), api_keys=keys, base_path="/base") as server:
        yield server


def wire_of(server: ServerProcess, key: str | None, at_s: float | None = None) -> Wire:
    return Wire(server.stranger(), key, at_s=at_s)


def test_a_signed_request_is_that_of_its_key_in_both_protocols(keyed: ServerProcess) -> None:
    wire = wire_of(keyed, ROOT_KEY)
    url = wire.create()
    wire.json("SendMessage", QueueUrl=url, MessageBody="x" * 200_000)
    assert wire.xml("ReceiveMessage", "/000000000000/" + url.rpartition("/")[2]).find("*") is not None
    shown = wire.json("GetQueueAttributes", QueueUrl=url, AttributeNames=["QueueArn"])
    assert shown["Attributes"]["QueueArn"].startswith("arn:aws:sqs:eu-central-1:000000000000:")


def test_a_wrong_signature_an_unknown_id_and_none_at_all_are_told_apart(keyed: ServerProcess) -> None:
    wire = wire_of(keyed, "a-secret-nobody-has")
    assert wire.error("ListQueues") == (403, "InvalidClientTokenId")
    assert wire_of(keyed, None).error("ListQueues") == (403, "MissingAuthenticationToken")
    assert wire_of(keyed, ROOT_KEY, time.time() - 901).error("ListQueues") == NO_MATCH
    assert wire_of(keyed, ROOT_KEY, time.time() + 901).error("ListQueues") == NO_MATCH


@pytest.mark.parametrize("size", [2, 300_000])
def test_a_body_or_an_operation_changed_on_the_way_does_nothing(keyed: ServerProcess, size: int) -> None:
    wire = wire_of(keyed, ROOT_KEY)
    url = wire.create(MaximumMessageSize="1048576")
    body = json.dumps({"QueueUrl": url, "MessageBody": "a" * size}).encode()
    headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.SendMessage"}
    sent = signed(wire.client, ROOT_KEY, "/", body, headers)
    changed = wire.client.request("POST", "/", body=body.replace(b"aa", b"ab"), headers=sent)
    assert (changed.status, changed.json["__type"]) == (403, "com.amazonaws.sqs#SignatureDoesNotMatch")
    other = wire.client.request("POST", "/", body=body, headers={**sent, "X-Amz-Target": "AmazonSQS.DeleteQueue"})
    assert other.status == 403
    assert wire.client.request("POST", "/", body=body, headers=sent).status == 200
    assert wire.json("GetQueueAttributes", QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"]) == {
        "Attributes": {"ApproximateNumberOfMessages": "1"}
    }


def test_a_body_too_large_is_refused_before_it_is_read(keyed: ServerProcess) -> None:
    wire = wire_of(keyed, ROOT_KEY)
    reply = wire.send("SendMessage", b'{"MessageBody":"' + b"x" * 5_000_000 + b'"}')
    assert (reply.status, reply.json["__type"]) == (400, "com.amazonaws.sqs#InvalidParameterValue")
    reply = wire_of(keyed, ROOT_KEY).form({"Action": "SendMessage", "MessageBody": "x" * 5_000_000})
    assert (reply.status, b"<Code>InvalidParameterValue</Code>" in reply.body) == (400, True)


def test_scopes_hold(keyed: ServerProcess) -> None:
    root, reader = wire_of(keyed, ROOT_KEY), wire_of(keyed, READER)
    name = new_name()
    url = root.create(name)
    assert reader.json("GetQueueUrl", QueueName=name)["QueueUrl"] == url
    # it exists as requested, and nothing is made
    assert reader.json("CreateQueue", QueueName=name)["QueueUrl"] == url
    for operation, params in {
        "SendMessage": {"MessageBody": "x"},
        "ReceiveMessage": {},
        "DeleteMessage": {"ReceiptHandle": "x"},
        "ChangeMessageVisibility": {"ReceiptHandle": "x", "VisibilityTimeout": 0},
        "PurgeQueue": {},
        "DeleteQueue": {},
        "SetQueueAttributes": {"Attributes": {}},
        "TagQueue": {"Tags": {}},
        "StartMessageMoveTask": {"SourceArn": "x"},
    }.items():
        assert reader.error(operation, QueueUrl=url, **params) == DENIED, operation
    assert reader.error("CreateQueue", QueueName=new_name()) == DENIED


def test_prefixes_hold(keyed: ServerProcess) -> None:
    root, worker = wire_of(keyed, ROOT_KEY), wire_of(keyed, WORKER)
    own, other = root.create(new_name("team")), root.create(new_name("other"))
    worker.json("SendMessage", QueueUrl=own, MessageBody="x")
    assert worker.json("ReceiveMessage", QueueUrl=own)["Messages"]
    assert other not in worker.json("ListQueues")["QueueUrls"]
    assert own in worker.json("ListQueues")["QueueUrls"]
    arn = "arn:aws:sqs:eu-central-1:000000000000:" + other.rpartition("/")[2]
    for operation, params in {
        "SendMessage": {"MessageBody": "x"},
        "ReceiveMessage": {},
        "GetQueueAttributes": {},
    }.items():
        assert worker.error(operation, QueueUrl=other, **params) == DENIED, operation
    assert worker.error("GetQueueUrl", QueueName=other.rpartition("/")[2]) == DENIED
    assert worker.error("ListMessageMoveTasks", SourceArn=arn) == DENIED
    path = "/000000000000/" + other.rpartition("/")[2]
    assert worker.form({"Action": "ReceiveMessage"}, path).status == 403


def test_a_queue_is_addressed_below_the_path_of_a_proxy(keyed: ServerProcess) -> None:
    wire = wire_of(keyed, ROOT_KEY)
    name = new_name()
    url = wire.json("CreateQueue", "/base/", QueueName=name)["QueueUrl"]
    assert url == f"http://127.0.0.1:{keyed.port}/base/000000000000/{name}"
    assert wire.json("SendMessage", f"/base/000000000000/{name}", QueueUrl=url, MessageBody="x")


def test_a_signature_for_the_path_of_a_proxy_is_not_one_for_a_queue_below_it(keyed: ServerProcess) -> None:
    wire = wire_of(keyed, ROOT_KEY)
    name = wire.create().rpartition("/")[2]
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    body = b"Action=PurgeQueue"
    sent = signed(wire.client, ROOT_KEY, "/base", body, headers)
    for path in (f"/base/000000000000/{name}", f"/000000000000/{name}"):
        assert wire.client.request("POST", path, body=body, headers=sent).status == 403
    body = b"Action=ListQueues"
    sent = signed(wire.client, ROOT_KEY, "/base", body, headers)
    for path in ("/base", "/base/", "/"):
        assert wire.client.request("POST", path, body=body, headers=sent).status == 200


def test_a_name_that_a_key_may_not_use_is_not_repeated_at_any_length(keyed: ServerProcess) -> None:
    worker, long = wire_of(keyed, WORKER), "x" * 100_000
    for operation, params in {
        "ReceiveMessage": {"QueueUrl": f"http://x/0/{long}"},
        "ListMessageMoveTasks": {"SourceArn": f"arn:aws:sqs:r:0:{long}"},
    }.items():
        reply = worker.send(operation, params)
        assert (reply.status, len(reply.body) < 1_000) == (403, True)


def test_other_requests_to_the_root_still_need_a_key(keyed: ServerProcess) -> None:
    client = keyed.stranger()
    assert client.post("/", {}).code == "unauthorized"
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert client.request("POST", "/", body=b"a=b", headers=form).code == "unauthorized"
    headers = {"X-Amz-Target": "AmazonSQS.ListQueues", "Authorization": f"Bearer {ROOT_KEY}"}
    reply = client.request("POST", "/", body=b"{}", headers=headers)
    assert (reply.status, reply.json["__type"]) == (403, "com.amazonaws.sqs#IncompleteSignature")
