"""The address of a bucket: what is refused, and that no secret in it is printed."""

from __future__ import annotations

import pytest

from topics.cli.settings_page import toml_lines
from topics.model.setting_types import WrongSetting, shown_url
from topics.model.settings import Settings
from topics.storage.bucket.connecting import connect

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
