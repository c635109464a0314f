"""What an SQS client has set and received outlives the process: killed, and opened again."""

from pathlib import Path

import pytest

from tests.serving import serving
from tests.sqs.wire import Wire

pytestmark = pytest.mark.slow


def test_attributes_tags_messages_and_visibility_survive_a_kill(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        wire = Wire(server.client())
        created = wire.json(
            "CreateQueue", QueueName="jobs.fifo", Attributes={"FifoQueue": "true", "DelaySeconds": "0"}, tags={"a": "b"}
        )
        url = created["QueueUrl"]
        wire.json("SetQueueAttributes", QueueUrl=url, Attributes={"ContentBasedDeduplication": "true"})
        attributes = {"k": {"DataType": "Number", "StringValue": "1"}}
        sent = [
            wire.json("SendMessage", QueueUrl=url, MessageBody=body, MessageGroupId=body, MessageAttributes=attributes)
            for body in ("taken", "free")
        ]
        (taken,) = wire.json("ReceiveMessage", QueueUrl=url, VisibilityTimeout=3600)["Messages"]
        shown = wire.json("GetQueueAttributes", QueueUrl=url, AttributeNames=["All"])
    with serving(tmp_path / "data") as server:
        wire = Wire(server.client())
        url = wire.json("GetQueueUrl", QueueName="jobs.fifo")["QueueUrl"]
        assert wire.json("GetQueueAttributes", QueueUrl=url, AttributeNames=["All"]) == shown
        assert wire.json("ListQueueTags", QueueUrl=url) == {"Tags": {"a": "b"}}
        repeated = wire.json("SendMessage", QueueUrl=url, MessageBody="free", MessageGroupId="free")
        assert repeated["MessageId"] == sent[1]["MessageId"]
        (free,) = wire.json("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"])[
            "Messages"
        ]
        assert (free["Body"], free["MessageAttributes"]) == ("free", attributes)
        wire.json("DeleteMessage", QueueUrl=url, ReceiptHandle=taken["ReceiptHandle"])
        wire.json("DeleteMessage", QueueUrl=url, ReceiptHandle=free["ReceiptHandle"])
        assert server.client().state("jobs.fifo")["count"] == 0
