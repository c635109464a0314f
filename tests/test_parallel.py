"""Tests in several processes: every report arrives, and a process that dies takes one test with it, by name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
SHARED = """
import pytest

@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    place = tmp_path_factory.mktemp("shared")
    yield place
    raise ValueError("at the end of the session")
"""
FIRST = """
import os, signal, warnings

def test_fails():
    print("printed before")
    assert [1, 2] == [1, 3]

def test_dies():
    os.kill(os.getpid(), signal.SIGKILL)

def test_comes_after(capsys):
    print("x")
    assert capsys.readouterr().out == "x\\n"

def test_warns():
    warnings.warn("beware")
"""
SECOND = """
import pytest

def test_has_what_is_shared(shared, tmp_path):
    assert shared.parent == tmp_path.parent

@pytest.mark.skip(reason="not today")
def test_is_skipped():
    pass

def test_is_last(shared):
    assert shared.exists()
"""


def run(place: Path, *options: str) -> tuple[int, str]:
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.parallel", "-p", "no:cacheprovider", "-ra", *options],
        cwd=place,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    return done.returncode, done.stdout + done.stderr


def write(place: Path) -> None:
    (place / "pytest.ini").write_text("[pytest]\n")
    (place / "conftest.py").write_text(SHARED)
    (place / "test_first.py").write_text(FIRST)
    (place / "test_second.py").write_text(SECOND)


def test_reports_of_all_processes_are_those_of_one(tmp_path: Path) -> None:
    write(tmp_path)
    code, said = run(tmp_path, "--processes", "2")
    assert code == 1, said
    for line in (
        "FAILED test_first.py::test_fails - assert [1, 2] == [1, 3]",
        "FAILED test_first.py::test_dies - the process that ran this test ended with ",
        "SKIPPED [1] test_second.py:7: not today",
        "ERROR test_second.py::test_is_last - ValueError: at the end of the session",
        "printed before",
        "Warning: beware",
        "2 failed, 4 passed, 1 skipped, 1 warning, 1 error in ",
    ):
        assert line in said, said


def test_a_run_that_is_to_end_at_the_first_failure_does(tmp_path: Path) -> None:
    write(tmp_path)
    code, said = run(tmp_path, "--processes", "1", "-x")
    assert code == 1, said
    assert "stopping after 1 failures" in said
    assert "1 failed in " in said
