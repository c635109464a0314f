"""The `topics` command against a server: as a process of its own, or within this one where only its words matter."""

import json
import os
import subprocess
from collections.abc import Callable
from typing import Any, NamedTuple

from tests import launching
from tests.launching import Launched
from tests.patience import PATIENCE_S
from tests.serving import TOPICS, ServerProcess


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> list[Any]:
        """The lines of standard output, decoded."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def complaint(self) -> str:
        """The one line of standard error that an error is; fails if there are more, or if all went well."""
        assert self.code != 0, self
        (line,) = self.err.splitlines()
        assert line.startswith("topics: "), line
        return line.removeprefix("topics: ")


Invoke = Callable[..., Done]


def environ(server: ServerProcess | None, **more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TOPICS_", "COLUMNS"))}
    if server is not None:
        clean["TOPICS_URL"] = f"http://127.0.0.1:{server.port}"
    return clean | more


def run(server: ServerProcess | None, *arguments: object, stdin: str | None = None, **env: str) -> Done:
    """A real process, from start to end."""
    given = (stdin or "").encode()
    if any(name.startswith("PYTHON") for name in env):
        # Those are for the interpreter.
        done = subprocess.run(
            [TOPICS, *map(str, arguments)],
            env=environ(server, **env),
            input=given,
            capture_output=True,
            timeout=PATIENCE_S,
        )
    else:
        done = launching.run([*map(str, arguments)], environ(server, **env), given)
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def start(server: ServerProcess | None, *arguments: object, stdin: int = subprocess.DEVNULL) -> Launched:
    """A real process that keeps running; standard output and error are pipes."""
    pipe = subprocess.PIPE
    return Launched([*map(str, arguments)], environ(server), stdin=stdin, stdout=pipe, stderr=pipe)
