"""A browser and a filled server: one of each for all tests of a file that want them; and a page of that server."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.console import browser as rig
from tests.console.browser import Console, opened
from tests.console.filling import fill
from tests.serving import ServerProcess, serving


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    rig.install()
    with rig.chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("data")) as server:
        fill(server.client())
        yield server


@pytest.fixture
def console(browser: Browser, server: ServerProcess) -> Iterator[Console]:
    with opened(browser, server) as console:
        yield console
