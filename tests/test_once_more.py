"""The safety net of the Makefile: tests that failed run once more, alone, and those that pass then are named."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[1] / ".ci" / "once_more.py"
# A test whose name has "flaky" in it fails the first time, one with "bad" in it always, others never.
TEST = """
import pytest
from pathlib import Path

@pytest.mark.parametrize("name", {names!r})
def test(name: str) -> None:
    seen = Path(__file__).with_name(f"seen {{name.encode().hex()}}")
    first = not seen.exists()
    seen.touch()
    assert not ("bad" in name or ("flaky" in name and first))
"""


def run(place: Path, *names: str, text: str = TEST, processes: int = 0) -> tuple[int, list[str]]:
    """The exit code, and what was printed."""
    place.joinpath("test_it.py").write_text(text.format(names=names))
    place.joinpath("pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, SCRIPT, "-q", "-p", "tests.parallel", "--processes", str(processes)],
        cwd=place,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(SCRIPT.parents[1])},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        timeout=PATIENCE_S,
    )
    return done.returncode, done.stdout.splitlines()


def flaky(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("FLAKY: ")]


def test_a_test_that_fails_once_is_named_and_stops_nobody(tmp_path: Path) -> None:
    code, lines = run(tmp_path, "good", "flaky", "flaky, with a::b and [c]", processes=2)
    assert code == 0
    assert flaky(lines) == [
        "FLAKY: test_it.py::test[flaky] (a defect: fix it)",
        "FLAKY: test_it.py::test[flaky, with a::b and [c]] (a defect: fix it)",
    ]
    assert any("!!! FLAKY: 2 failed first and passed then (a defect: fix it) !!!" in line for line in lines)
    assert "2 passed in" in "\n".join(lines).rpartition("once more, one after the other")[2], "those two alone"


def test_a_test_that_fails_again_fails_the_run(tmp_path: Path) -> None:
    code, lines = run(tmp_path, "good", "flaky", "bad")
    assert code == 1
    assert flaky(lines) == ["FLAKY: test_it.py::test[flaky] (a defect: fix it)"]


def test_more_than_five_failures_are_not_tried_again(tmp_path: Path) -> None:
    code, lines = run(tmp_path, *(f"flaky {number}" for number in range(6)))
    assert (code, flaky(lines)) == (1, [])
    assert "6 tests failed: those are too many to run again (at most 5)" in lines


def test_what_failed_in_an_earlier_run_is_not_run_again(tmp_path: Path) -> None:
    assert run(tmp_path, "bad")[0] == 1
    code, lines = run(tmp_path, "good")
    assert (code, flaky(lines)) == (0, [])
    assert not any("once more" in line for line in lines)


@pytest.mark.parametrize(("text", "code"), [("import nothing_of_that_name", 2), ("", 5)])
def test_other_ends_are_passed_on(tmp_path: Path, text: str, code: int) -> None:
    """Errors of collection, and no tests at all."""
    assert run(tmp_path, text=text)[0] == code
