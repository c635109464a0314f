"""`topics sqs credentials`: what an SQS client signs with, from the key alone."""

import hashlib
import json

from tests.cli.terminal import Invoke

KEY = "a-key-of-the-server"


def test_the_access_key_is_the_id_of_the_key_and_the_secret_is_derived_from_it(invoke: Invoke) -> None:
    done = invoke("sqs", "credentials", TOPICS_API_KEY=KEY)
    assert done.code == 0
    secret = hashlib.sha256(b"sqs:" + KEY.encode()).hexdigest()
    assert done.out.splitlines() == [
        f"export AWS_ACCESS_KEY_ID={hashlib.sha256(KEY.encode()).hexdigest()[:12]}",
        f"export AWS_SECRET_ACCESS_KEY={secret}",
    ]
    shown = json.loads(invoke("sqs", "credentials", "-o", "json", TOPICS_API_KEY=KEY).out)
    assert shown["AWS_SECRET_ACCESS_KEY"] == secret


def test_without_a_key_it_says_which_variable_is_missing(invoke: Invoke) -> None:
    done = invoke("sqs", "credentials", TOPICS_API_KEY="")
    assert done.code != 0
    assert "TOPICS_API_KEY" in done.err
