"""docs/CLIENT.md and docs/COMING_FROM.md are true: their blocks run, one after the other, against a live server."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests import launching
from tests.client.conftest import SECRET
from tests.serving import serving

DOCS = Path(__file__).parent.parent.parent / "docs"


@pytest.mark.parametrize(("page", "printed"), [("CLIENT.md", "nobody"), ("COMING_FROM.md", "no such user")])
def test_every_block_runs(page: str, printed: str, tmp_path: Path, users: str) -> None:
    text = (DOCS / page).read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == text.count("```python") > 10
    with serving(tmp_path, jwt_secret=SECRET, users=users) as server:
        script = "\n".join([launching.WARNINGS_ARE_ERRORS, *blocks]).replace(
            "127.0.0.1:4000", f"127.0.0.1:{server.port}"
        )
        environ = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        done = launching.run([], environ | {"TOPICS_PORT": str(server.port)}, code=script)
        assert done.returncode == 0, done.stderr.decode()
    assert printed in done.stdout.decode()
