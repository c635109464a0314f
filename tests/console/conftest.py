"""A browser: one Chromium for all tests of a file that want one."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.console import browser as rig


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    rig.install()
    with rig.chromium() as browser:
        yield browser
