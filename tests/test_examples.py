"""Every example runs as it is printed."""

import os
from pathlib import Path

import pytest

from tests import launching

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example_runs(example: Path) -> None:
    done = launching.run([], os.environ, code=example.read_text())
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout
