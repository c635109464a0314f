"""aws-cli, unmodified: the one of today, which speaks JSON, and the last one that spoke the older protocol."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.serving import ServerProcess
from tests.sqs.clients import NEW, OLD, environ, need

pytestmark = pytest.mark.slow

Aws = Callable[..., Any]


@pytest.fixture(params=[NEW, OLD], ids=["json", "query"])
def aws(request: pytest.FixtureRequest, server: ServerProcess) -> Aws:
    venv: Path = need(request.param)

    def run(*arguments: str, fails: bool = False) -> Any:
        command = [venv / "bin" / "python", venv / "bin" / "aws", "--endpoint-url", f"http://127.0.0.1:{server.port}"]
        done = subprocess.run(
            [*command, "sqs", *arguments],
            env=environ(server.port),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        if fails:
            assert done.returncode != 0
            return done.stderr
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) if done.stdout.strip() else None

    run.venv = venv.name  # type: ignore[attr-defined]
    return run


def test_a_session_at_the_prompt(aws: Any) -> None:
    name = f"cli-{aws.venv}"
    url = aws("create-queue", "--queue-name", name, "--attributes", "VisibilityTimeout=45")["QueueUrl"]
    assert aws("get-queue-url", "--queue-name", name)["QueueUrl"] == url
    assert url in aws("list-queues", "--queue-name-prefix", "cli-")["QueueUrls"]
    attributes = json.dumps({"k": {"DataType": "String", "StringValue": "v"}})
    sent = aws("send-message", "--queue-url", url, "--message-body", "hällo <&>", "--message-attributes", attributes)
    entries = json.dumps([{"Id": "1", "MessageBody": "two"}, {"Id": "2", "MessageBody": "three"}])
    assert len(aws("send-message-batch", "--queue-url", url, "--entries", entries)["Successful"]) == 2
    names = ["--attribute-names", "All", "--message-attribute-names", "All"]
    received = aws("receive-message", "--queue-url", url, "--max-number-of-messages", "10", *names)["Messages"]
    assert [message["Body"] for message in received] == ["hällo <&>", "two", "three"]
    assert received[0]["MessageId"] == sent["MessageId"]
    assert received[0]["MessageAttributes"]["k"]["StringValue"] == "v"
    handles = [message["ReceiptHandle"] for message in received]
    change = ["--receipt-handle", handles[0], "--visibility-timeout", "100"]
    aws("change-message-visibility", "--queue-url", url, *change)
    aws("delete-message", "--queue-url", url, "--receipt-handle", handles[0])
    gone = json.dumps([{"Id": str(n), "ReceiptHandle": handle} for n, handle in enumerate(handles[1:])])
    assert len(aws("delete-message-batch", "--queue-url", url, "--entries", gone)["Successful"]) == 2
    shown = aws("get-queue-attributes", "--queue-url", url, "--attribute-names", "All")["Attributes"]
    assert (shown["VisibilityTimeout"], shown["ApproximateNumberOfMessages"]) == ("45", "0")
    aws("tag-queue", "--queue-url", url, "--tags", "team=a")
    assert aws("list-queue-tags", "--queue-url", url)["Tags"] == {"team": "a"}
    aws("purge-queue", "--queue-url", url)
    aws("delete-queue", "--queue-url", url)
    assert "AWS.SimpleQueueService.NonExistentQueue" in aws("get-queue-url", "--queue-name", name, fails=True)
