"""A failed test accounts for its servers: whether one had ended, with which exit code, and what it said last."""

import os
import re
import signal
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.serving import serving
from tests.test_parallel import run

FAILS = """
import os, signal
from tests.serving import serving

def test_fails(tmp_path):
    with serving(tmp_path / "first") as first, serving(tmp_path / "second"):
        os.kill(first.process.pid, signal.SIGKILL)
        first.process.wait()
        raise ValueError("at last")
"""


def test_a_server_that_is_gone_is_told_from_one_that_was_killed_at_the_end(tmp_path: Path) -> None:
    with serving(tmp_path / "first") as first, serving(tmp_path / "second") as second:
        os.kill(first.process.pid, signal.SIGTERM)
        first.process.wait(PATIENCE_S)
        assert first.account()[0].endswith(" ended with exit code 0")
        assert second.account()[0].endswith(" runs")
    state, log = first.account()
    assert state.endswith(" ended with exit code 0")
    assert log.endswith("stopped")
    state, log = second.account()
    assert state.endswith(" ran until the test killed it")
    assert "listening on " in log


@pytest.mark.slow
def test_the_report_of_a_failed_test_has_the_logs_of_its_servers(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_one.py").write_text(FAILS)
    code, said = run(tmp_path, "-p", "tests.conftest")
    assert code == 1, said
    assert re.search(r"-- server \d+ ended with exit code -9 --", said), said
    assert re.search(r"-- server \d+ ran until the test killed it --", said), said
    assert said.count(" ready: ") == 2, said
