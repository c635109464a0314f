"""docs/EMBEDDED.md is true: its blocks run, one after the other, in an empty directory."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests import launching
from tests.both.test_parity import OWN_FORM, SERVER_ONLY

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "EMBEDDED.md").read_text()


def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == PAGE.count("```python") > 6
    monkeypatch.chdir(tmp_path)
    done = launching.run([], os.environ, code="\n".join([launching.WARNINGS_ARE_ERRORS, *blocks]))
    assert done.returncode == 0, done.stderr.decode()
    printed = done.stdout.decode()
    assert "1 customer-7 {'order': 1, 'total': 9.9}" in printed
    assert "True [2, 3]" in printed
    assert "topic_not_found nobody" in printed
    assert not done.stderr


def test_what_only_a_server_has_is_listed() -> None:
    for verb in (*SERVER_ONLY, *OWN_FORM):
        assert f"`{verb}" in PAGE


def test_the_readme_leads_there() -> None:
    assert "docs/EMBEDDED.md" in (ROOT / "README.md").read_text()
