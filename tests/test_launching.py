"""A launched process has what it was given, as a new process would, and nothing of the launcher."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests import launching
from tests.patience import PATIENCE_S

SHOW = """
import json, os, signal, sys
descriptors = sorted(map(int, os.listdir("/proc/self/fd")))[:-1]
interrupt = signal.getsignal(signal.SIGINT) is signal.default_int_handler
print(json.dumps([sys.argv, dict(os.environ), os.getcwd(), sys.stdin.read(), descriptors, interrupt]))
print("é", file=sys.stderr)
"""


def test_it_has_its_own_arguments_environment_directory_input_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = launching.run(["a", "b c"], {"ONLY": "é"}, b"typed", code=SHOW)
    assert (done.returncode, done.stderr.decode()) == (0, "é\n")
    assert json.loads(done.stdout) == [["topics", "a", "b c"], {"ONLY": "é"}, str(tmp_path), "typed", [0, 1, 2], True]


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("pass", 0),
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit('no')", 1),
        ("1 / 0", 1),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
    ],
)
def test_its_end_is_that_of_a_process(code: str, status: int) -> None:
    assert launching.run([], os.environ, code=code).returncode == status


def test_a_signal_reaches_it_and_a_wait_has_a_limit() -> None:
    process = launching.Launched([], os.environ, code="import time; time.sleep(3600)")
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.terminate()
    assert process.wait(PATIENCE_S) == process.poll() == -signal.SIGTERM
    process.kill()
