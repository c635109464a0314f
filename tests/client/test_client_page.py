"""docs/CLIENT.md is true: its blocks run, one after the other, against a live server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.client.conftest import SECRET
from tests.patience import PATIENCE_S
from tests.serving import serving

PAGE = (Path(__file__).parent.parent.parent / "docs" / "CLIENT.md").read_text()


def test_every_block_runs(tmp_path: Path, users: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == PAGE.count("```python") > 10
    with serving(tmp_path, jwt_secret=SECRET, users=users) as server:
        script = "\n".join(blocks).replace("127.0.0.1:4000", f"127.0.0.1:{server.port}")
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=PATIENCE_S
        )
    assert done.returncode == 0, done.stderr
    assert "nobody" in done.stdout
