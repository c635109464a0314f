"""docs/TUTORIAL.md does what it says: its commands are run block by block, and print what it shows."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.terminal import environ
from tests.patience import PATIENCE_S
from tests.serving import free_port

ROOT = Path(__file__).parent.parent.parent
TUTORIAL = ROOT / "docs" / "TUTORIAL.md"
README, QUEUES = ROOT / "README.md", ROOT / "docs" / "QUEUES.md"
# The topic of a command, or of a path.
TOPIC = re.compile(r"(?:topics (?:append|tail|export|import|topic create|queue \w+)(?: -f)? |/v0/topics/)([\w.-]+)")
DEADLINE_S = PATIENCE_S
BLOCK = re.compile(r"(?:<!-- terminal: (\w+) -->\n)?```(\w+)\n(.*?)```", re.DOTALL)


class Step(NamedTuple):
    """A command and the lines below it; with a terminal, one that keeps running while the others run."""

    terminal: str | None
    command: str
    shown: list[str]


class Terminal:
    """A command that keeps running, and everything it has printed so far."""

    def __init__(self, command: str, directory: Path, env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=directory,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(timeout=DEADLINE_S)
        self._reader.join(timeout=DEADLINE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def steps(text: str, directory: Path) -> Iterator[Step]:
    """Programs are saved under the name in their first line; commands are handed out in the order of the page."""
    for terminal, language, body in BLOCK.findall(text):
        if language == "python":
            (directory / body.partition("\n")[0].removeprefix("# ")).write_text(body)
        elif language == "console":
            for piece in body.split("$ ")[1:] if body.startswith("$ ") else []:
                command, _, shown = piece.partition("\n")
                yield Step(terminal or None, command, shown.splitlines())


def matches(shown: list[str], printed: list[str]) -> bool:
    pattern = "\n".join(".*".join(map(re.escape, line.split("…"))) for line in shown)
    return re.fullmatch(pattern, "\n".join(printed)) is not None


def wait_for(terminal: Terminal, shown: list[str]) -> None:
    """Until it has printed each of the lines."""
    end_s = time.monotonic() + DEADLINE_S
    while not all(any(matches([line], [printed]) for printed in terminal.lines) for line in shown):
        assert time.monotonic() < end_s, (shown, terminal.lines)
        assert terminal.process.poll() is None, terminal.lines
        time.sleep(0.02)


def before_the_tutorial() -> list[str]:
    """The commands of the README that write."""
    text = README.read_text()
    appends = re.findall(r"^\$ (topics append .*)$", text, re.MULTILINE)
    return [*appends, *(block for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) if "curl" in block)]


def test_the_pages_that_follow_each_other_use_topics_of_their_own() -> None:
    blocks = (path.read_text() for path in (README, TUTORIAL, QUEUES))
    readme, tutorial, queues = (
        {name for _, language, body in BLOCK.findall(text) if language != "python" for name in TOPIC.findall(body)}
        for text in blocks
    )
    assert ({"orders", "mails", "mails.dead"} <= tutorial, bool(readme), bool(queues)) == (True, True, True)
    assert not (readme & tutorial) | (readme & queues) | (tutorial & queues)


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.mark.slow
@pytest.mark.timeout(720)
def test_every_command_prints_what_the_page_shows(tmp_path: Path, port: int) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = environ(None, PATH=path, TOPICS_PORT=str(port), TOPICS_URL=f"http://127.0.0.1:{port}", PYTHONUNBUFFERED="1")
    text = TUTORIAL.read_text().replace("4000", str(port))
    terminals: dict[str, tuple[Terminal, list[str]]] = {}
    ran = 0
    try:
        for step in steps(text, tmp_path):
            if step.command.startswith(". .venv"):
                continue
            ran += 1
            if step.terminal is not None:
                terminals[step.terminal] = terminal, _ = Terminal(step.command, tmp_path, env), step.shown
                if step.terminal == "server":
                    wait_for(terminal, step.shown)
                    for command in before_the_tutorial():
                        shell = command.replace("4000", str(port))
                        subprocess.run(["bash", "-c", shell], cwd=tmp_path, env=env, check=True, timeout=DEADLINE_S)
                continue
            done = subprocess.run(
                ["bash", "-c", step.command],
                cwd=tmp_path,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=DEADLINE_S,
            )
            assert done.returncode == 0, (step, done.stdout)
            assert matches(step.shown, done.stdout.splitlines()), (step, done.stdout)
        for name in ("tail", "worker"):
            terminal, shown = terminals[name]
            wait_for(terminal, shown)
            assert terminal.stop() == (130 if name == "tail" else 0)
            assert matches(shown, terminal.lines), (shown, terminal.lines)
    finally:
        for terminal, _ in terminals.values():
            if terminal.process.poll() is None:
                terminal.stop()
    assert ran > 15
    assert {"tail", "worker", "server"} == set(terminals)


def test_the_comparison_can_fail() -> None:
    assert matches(["a…c", "d"], ["abbc", "d"])
    assert not matches(["a…c"], ["abbc", "d"])
    assert not matches(["a.c"], ["abc"])
    assert not matches(["a…c", "d"], ["abb", "d"])
