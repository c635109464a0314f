"""A topic name of its own for each test, and commands run within this process."""

import itertools
import logging
import sys
import tempfile
from collections.abc import Iterator

import pytest

from tests.cli.terminal import Done, Invoke, environ
from tests.serving import Client, ServerProcess
from topics import cli

_numbers = itertools.count(1)


@pytest.fixture
def client(server: ServerProcess) -> Client:
    return server.client()


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"c{next(_numbers)}"


@pytest.fixture
def invoke(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Invoke]:
    """Run a command in this process: what it prints and its exit code, without the time that a start takes.

    Standard input is `stdin`, a file; other named arguments are variables of the environment.
    """
    for name, value in environ(server).items():
        if name.startswith("TOPICS_"):
            monkeypatch.setenv(name, value)

    def invoke(*arguments: object, stdin: str = "", **env: str) -> Done:
        capsys.readouterr()
        with monkeypatch.context() as patch, tempfile.TemporaryFile("w+") as file:
            file.write(stdin)
            file.seek(0)
            patch.setattr(sys, "stdin", file)
            for name, value in env.items():
                patch.setenv(name, value)
            code = _exit_code([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Done(code, out, err)

    handlers = list(logging.root.handlers)
    yield invoke
    logging.root.handlers[:] = handlers


def _exit_code(arguments: list[str]) -> int:
    try:
        return cli.run(arguments)
    except SystemExit as end:
        return int(end.code or 0)
