"""boto3, unmodified: every operation, the checks it makes of what it gets, and its own signer against ours."""

import hashlib
import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serving import ServerProcess
from tests.sqs.clients import boto3_client, import_boto
from topics.api.auth import key_id_of, sqs_secret_of
from topics.api.sqs.signature import Signable, Verifier, joined_headers, parse_authorization

pytestmark = pytest.mark.slow

KEY = "the-key-of-boto3"


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from tests.serving import serving

    with serving(tmp_path_factory.mktemp("data"), api_keys=f"{KEY},{KEY}-reader:read") as server:
        yield server


@pytest.fixture(scope="module")
def sqs(keyed: ServerProcess) -> Any:
    return boto3_client(keyed.port, key_id_of(KEY), sqs_secret_of(KEY))


def arn_of(sqs: Any, url: str) -> str:
    return sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]


def test_a_tour_of_a_standard_queue(sqs: Any) -> None:
    url = sqs.create_queue(QueueName="tour", Attributes={"VisibilityTimeout": "60"}, tags={"team": "a"})["QueueUrl"]
    assert sqs.get_queue_url(QueueName="tour")["QueueUrl"] == url
    assert url in sqs.list_queues(QueueNamePrefix="to")["QueueUrls"]
    # boto3 raises if a digest is not what it computed from what it sent or got
    sent = sqs.send_message(
        QueueUrl=url,
        MessageBody='{"a": "ä \U0001f600\\u0007", "b": [1, 2]}\n',
        MessageAttributes={
            "text": {"DataType": "String", "StringValue": "ü"},
            "bytes": {"DataType": "Binary", "BinaryValue": bytes(range(256))},
            "number": {"DataType": "Number.int", "StringValue": "12"},
        },
    )
    received = sqs.receive_message(QueueUrl=url, MessageAttributeNames=["All"], AttributeNames=["All"])
    (message,) = received["Messages"]
    assert message["MessageId"] == sent["MessageId"]
    assert message["Body"] == '{"a": "ä \U0001f600\\u0007", "b": [1, 2]}\n'
    assert message["MessageAttributes"]["bytes"]["BinaryValue"] == bytes(range(256))
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
    (message,) = sqs.receive_message(QueueUrl=url, MessageSystemAttributeNames=["ApproximateReceiveCount"])["Messages"]
    assert message["Attributes"] == {"ApproximateReceiveCount": "2"}
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    entries = [{"Id": str(number), "MessageBody": f"message {number}"} for number in range(10)]
    assert len(sqs.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]) == 10
    messages = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=20)["Messages"]
    assert len(messages) == 10
    handles = [{"Id": str(n), "ReceiptHandle": one["ReceiptHandle"]} for n, one in enumerate(messages)]
    changes = [{**handle, "VisibilityTimeout": 90} for handle in handles]
    assert len(sqs.change_message_visibility_batch(QueueUrl=url, Entries=changes)["Successful"]) == 10
    assert len(sqs.delete_message_batch(QueueUrl=url, Entries=handles)["Successful"]) == 10
    sqs.tag_queue(QueueUrl=url, Tags={"cost": "1"})
    sqs.untag_queue(QueueUrl=url, TagKeys=["team"])
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"cost": "1"}
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "0"})
    sqs.purge_queue(QueueUrl=url)
    sqs.delete_queue(QueueUrl=url)
    with pytest.raises(sqs.exceptions.QueueDoesNotExist) as caught:
        sqs.get_queue_url(QueueName="tour")
    assert caught.value.response["Error"]["Code"] == "AWS.SimpleQueueService.NonExistentQueue"


def test_a_large_message_and_a_fifo_queue(sqs: Any) -> None:
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true", "MaximumMessageSize": "1048576"}
    url = sqs.create_queue(QueueName="tour.fifo", Attributes=attributes)["QueueUrl"]
    body = "ß" * 260_000
    sent = [sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId="g") for _ in range(2)]
    assert sent[0]["SequenceNumber"] == sent[1]["SequenceNumber"]
    (message,) = sqs.receive_message(QueueUrl=url, AttributeNames=["All"])["Messages"]
    assert message["Attributes"]["MessageGroupId"] == "g"
    assert hashlib.md5(message["Body"].encode()).hexdigest() == message["MD5OfBody"]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


def test_dead_letters_and_back(sqs: Any) -> None:
    dead = sqs.create_queue(QueueName="dead")["QueueUrl"]
    policy = json.dumps({"deadLetterTargetArn": arn_of(sqs, dead), "maxReceiveCount": 1})
    url = sqs.create_queue(QueueName="mortal", Attributes={"RedrivePolicy": policy})["QueueUrl"]
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [url]
    sqs.send_message(QueueUrl=url, MessageBody="bad")
    (message,) = sqs.receive_message(QueueUrl=url)["Messages"]
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    count = {"QueueUrl": dead, "AttributeNames": ["ApproximateNumberOfMessages"]}
    while sqs.get_queue_attributes(**count)["Attributes"] != {"ApproximateNumberOfMessages": "1"}:
        pass
    sqs.start_message_move_task(SourceArn=arn_of(sqs, dead))
    (message,) = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20)["Messages"]
    assert message["Body"] == "bad"
    (task,) = sqs.list_message_move_tasks(SourceArn=arn_of(sqs, dead))["Results"]
    assert task["SourceArn"] == arn_of(sqs, dead)


def test_errors_are_the_exceptions_of_boto3(keyed: ServerProcess, sqs: Any) -> None:
    import_boto()
    from botocore.exceptions import ClientError  # pyright: ignore[reportMissingImports]

    url = sqs.create_queue(QueueName="errors")["QueueUrl"]
    with pytest.raises(sqs.exceptions.QueueNameExists):
        sqs.create_queue(QueueName="errors", Attributes={"DelaySeconds": "5"})
    with pytest.raises(sqs.exceptions.ReceiptHandleIsInvalid):
        sqs.delete_message(QueueUrl=url, ReceiptHandle="garbage")
    with pytest.raises(sqs.exceptions.EmptyBatchRequest):
        sqs.send_message_batch(QueueUrl=url, Entries=[])
    for client, code in (
        (boto3_client(keyed.port, key_id_of(KEY), "wrong"), "SignatureDoesNotMatch"),
        (boto3_client(keyed.port, "000000000000", "wrong"), "InvalidClientTokenId"),
        (boto3_client(keyed.port, key_id_of(KEY + "-reader"), sqs_secret_of(KEY + "-reader")), "AccessDenied"),
    ):
        with pytest.raises(ClientError) as caught:
            client.send_message(QueueUrl=url, MessageBody="x")
        assert caught.value.response["Error"]["Code"] == code
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403


HEADER_VALUES = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E) | st.just(" "), max_size=20)
PATHS = st.lists(st.text("abcXYZ019-_.~:@!$&'()*+,;= %äü", min_size=1, max_size=8), max_size=3)
QUERIES = st.dictionaries(
    st.text("abA ~*/+&=ä", min_size=1, max_size=5), st.text("abA ~*/+&=ä", max_size=5), max_size=4
)


@settings(max_examples=200)
@given(
    st.binary(max_size=200),
    PATHS,
    QUERIES,
    st.dictionaries(st.sampled_from(["X-Amz-Target", "X-A", "B"]), HEADER_VALUES),
)
def test_what_botocore_signs_is_what_is_verified(
    body: bytes, segments: list[str], query: dict[str, str], headers: dict[str, str]
) -> None:
    import_boto()
    from urllib.parse import quote, urlencode, urlsplit

    from botocore.auth import SigV4Auth  # pyright: ignore[reportMissingImports]
    from botocore.awsrequest import AWSRequest  # pyright: ignore[reportMissingImports]
    from botocore.credentials import Credentials  # pyright: ignore[reportMissingImports]

    segments = [segment for segment in segments if segment not in (".", "..")]
    path = "/" + "/".join(quote(segment, safe="") for segment in segments)
    url = f"http://127.0.0.1:4000{path}" + ("?" + urlencode(query, quote_via=quote, safe="") if query else "")
    request = AWSRequest("POST", url, headers=headers, data=body)
    SigV4Auth(Credentials("id", "secret"), "sqs", "eu-west-1").add_auth(request)
    sent = [(name.lower().encode(), value.encode()) for name, value in request.headers.items()]
    if all(name != b"host" for name, _ in sent):
        sent.append((b"host", b"127.0.0.1:4000"))
    parts = urlsplit(url)
    signable = Signable(
        "POST", parts.path.encode(), parts.query.encode(), joined_headers(sent), hashlib.sha256(body).hexdigest()
    )
    signed = parse_authorization(dict(sent)[b"authorization"])
    assert (signed.key_id, signed.region) == ("id", "eu-west-1")
    Verifier().verify(signable, signed, "secret", time.time())
