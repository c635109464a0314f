"""docs/EMBEDDED.md is true: its blocks run, one after the other, in an empty directory."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.both.test_parity import OWN_FORM, SERVER_ONLY
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "EMBEDDED.md").read_text()


def test_every_block_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == PAGE.count("```python") > 6
    script = [sys.executable, "-W", "error", "-c", "\n".join(blocks)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 customer-7 {'order': 1, 'total': 9.9}" in done.stdout
    assert "True [2, 3]" in done.stdout
    assert "topic_not_found nobody" in done.stdout
    assert not done.stderr


def test_what_only_a_server_has_is_listed() -> None:
    for verb in (*SERVER_ONLY, *OWN_FORM):
        assert f"`{verb}" in PAGE


def test_the_readme_leads_there() -> None:
    assert "docs/EMBEDDED.md" in (ROOT / "README.md").read_text()
