"""The address of a bucket: what is refused, and that no secret in it is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.bucket.careless_s3 import Fault, careless_s3
from tests.serving import ServerProcess
from topics.cli.settings_page import toml_lines
from topics.model.setting_types import WrongSetting, shown_url
from topics.model.settings import Settings
from topics.storage.bucket.object_store import reason_of
from topics.storage.bucket.starting.connecting import connect

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    "url",
    [
        f"az://account/container/p?sv=1&sig={SECRET}",
        f"az://account/container/p#{SECRET}",
        f"s3://key:{SECRET}@bkt/p",
        f"s3://key:a/{SECRET}@bkt/p",
        f"s3://key:a?{SECRET}@bkt/p",
        f"s3://[key:{SECRET}@bkt/p",
        f"s3:key:{SECRET}@bkt/p",
        f"file://key:{SECRET}@host/p",
    ],
)
def test_an_address_with_a_secret_is_refused_and_the_secret_is_not_printed(url: str) -> None:
    with pytest.raises(WrongSetting) as refused:
        connect(url, {})
    assert SECRET not in refused.value.message
    assert "TOPICS_BUCKET" in refused.value.message
    assert SECRET not in "\n".join(toml_lines(Settings(bucket=url), None))


@pytest.mark.parametrize("url", ["s3://bkt/team@home/p", "file:///mnt/a@b:c", "az://account/container/p"])
def test_an_address_without_one_is_printed_as_it_is(url: str) -> None:
    assert shown_url(url) == url
    assert f'bucket = "{url}"' in toml_lines(Settings(bucket=url), None)


# What the library reports of an answer, and of none.
ANSWERED = (
    "{first} Error performing PUT http://h/b/k in 1ms - Server returned non-2xx status code: {status}: <?xml?>\n{body}"
)
SILENT = (
    "Generic S3 error: Error performing PUT http://h/b/k in 3s - HTTP error: error sending request\n\nkind: {kind},"
)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        (
            ANSWERED.format(
                first="Denied:", status="403 Forbidden", body=f"<Code>AccessDenied</Code><Key>{SECRET}</Key>"
            ),
            "access is denied (403 AccessDenied): Denied: Error performing",
        ),
        (
            ANSWERED.format(first="Generic:", status="503 Slow Down", body=""),
            "too many requests, or not available for now (503): Generic: ",
        ),
        (
            ANSWERED.format(first="Generic:", status="500 Error", body="<Code>InternalError</Code>"),
            "the bucket answered with an error (500 InternalError): ",
        ),
        (SILENT.format(kind="Timeout"), "no answer in time: Generic S3 error: "),
        (SILENT.format(kind="Connect"), "no connection: Generic S3 error: "),
        ("something else\nand more", "something else"),
    ],
)
def test_an_error_begins_in_plain_words_and_is_one_line(text: str, plain: str) -> None:
    found = reason_of(RuntimeError(text))
    assert found.startswith(plain)
    assert "\n" not in found
    assert SECRET not in found


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("If-None-Match", "ignores the conditions of writes .*use a store that supports conditional writes"),
        ("If-Match", "ignores the conditions of writes .*use a store that supports conditional writes"),
        ("read only", r"cannot write to it: access is denied \(403 AccessDenied\).*the rights of the credentials"),
    ],
)
def test_a_store_that_cannot_do_what_is_needed_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault, why: str
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with careless_s3(fault) as port:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        server = ServerProcess(tmp_path / "data", bucket="s3://bkt/p")
        assert server.exit_code() == 2
    assert re.search(why, server.lines[-1])
    assert SECRET not in server.log
