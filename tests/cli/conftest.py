"""One server for each test module, a topic name of its own for each test, and the command line within this process."""

import itertools
import logging
from collections.abc import Iterator

import pytest

from tests.cli.terminal import Done, Invoke, environ
from tests.serving import Client, ServerProcess, serving
from topics import cli

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("data")) as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Client:
    return server.client()


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"t{next(_numbers)}"


@pytest.fixture
def invoke(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Invoke]:
    """Run a command in this process: what it prints and its exit code, without the time that a start takes."""
    for name, value in environ(server).items():
        if name.startswith("TOPICS_"):
            monkeypatch.setenv(name, value)

    def invoke(*arguments: object) -> Done:
        capsys.readouterr()
        code = cli.run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Done(code, out, err)

    handlers = list(logging.root.handlers)
    yield invoke
    logging.root.handlers[:] = handlers
