"""Long work on a terminal shows a bar, elsewhere plain lines; never among the data."""

import os
import pty
import re
import subprocess
from pathlib import Path

import pytest

from tests.cli.terminal import environ, run
from tests.patience import PATIENCE_S
from tests.serving import TOPICS, Client, ServerProcess
from topics.cli import progress as progress_module
from topics.cli.progress import progress


def on_a_terminal(server: ServerProcess, *arguments: object) -> tuple[int, bytes, str]:
    """Run with standard error on a terminal of its own: exit code, standard output, and what the terminal showed."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [TOPICS, *map(str, arguments)],
        env=environ(server, TERM="xterm", COLUMNS="100"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
    )
    os.close(theirs)
    out, _ = process.communicate(timeout=PATIENCE_S)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 65_536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    return process.returncode, out, shown.decode()


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines"
    path.write_text("".join('{"data":"' + "x" * 100 + '"}\n' for _ in range(5_000)))
    return path


@pytest.mark.slow
def test_a_terminal_sees_a_bar_that_fills(server: ServerProcess, client: Client, topic: str, lines: Path) -> None:
    code, out, shown = on_a_terminal(server, "import", topic, lines)
    assert code == 0
    assert out.startswith(b'{"topic":'), "the bar is not among the data"
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert f"import {topic}" in plain
    assert "━━━" in plain
    assert re.search(r"([\d.]+)/\1 (bytes|kB|MB)", plain), plain[-300:]
    assert client.state(topic)["count"] == 5_000


def test_elsewhere_there_is_no_bar(server: ServerProcess, topic: str, lines: Path) -> None:
    assert run(server, "import", topic, lines).err == ""


def test_elsewhere_a_line_says_now_and_then_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s = [0.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now_s[0])
    with progress("export t", 1_000, done=100) as step:
        for _ in range(4):
            now_s[0] += 3
            step(100)
    with progress("append", None, "bytes") as step:
        now_s[0] += 6
        step(3 << 20)
    assert capsys.readouterr().err.splitlines() == [
        "topics: export t: 300 records (30%)",
        "topics: export t: 500 records (50%)",
        "topics: append: 3.0 MiB",
    ]


@pytest.mark.slow
def test_no_bar_is_drawn_over_typed_input(server: ServerProcess, client: Client, topic: str) -> None:
    ours, theirs = pty.openpty()
    command = [TOPICS, "append", topic]
    process = subprocess.Popen(
        command, env=environ(server, TERM="xterm"), stdin=theirs, stdout=subprocess.PIPE, stderr=theirs
    )
    os.close(theirs)
    os.write(ours, b'"typed"\n\x04')
    out, _ = process.communicate(timeout=PATIENCE_S)
    shown = os.read(ours, 65_536).decode()
    os.close(ours)
    assert out.startswith(b'{"topic":')
    assert "one record per line; Ctrl-D ends" in shown
    assert "━" not in shown
    assert [record["data"] for record in client.diff(topic)["records"]] == ["typed"]
