"""The backup drill of docs/PRODUCTION.md: its commands, as they are printed, on a real server."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.terminal import environ
from tests.deploy.parts import ROOT
from tests.patience import PATIENCE_S
from tests.serving import free_port, serving

pytestmark = pytest.mark.slow


def test_the_drill_restores_what_the_server_has(tmp_path: Path) -> None:
    section = (ROOT / "docs" / "PRODUCTION.md").read_text().split("## The backup drill")[1]
    drill, nightly = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    backups = tmp_path / "backups"
    backups.mkdir()
    script = drill.replace("4999", str(free_port())).replace("/tmp/drill", str(tmp_path / "drill"))
    with serving(tmp_path / "data") as server:
        client = server.client()
        client.append("visits", *range(1234))
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            [
                "bash",
                "-euc",
                f"trap 'kill $(jobs -p) 2>/dev/null || :' EXIT\n{script}\n{nightly.replace('/backups', str(backups))}",
            ],
            env=environ(server, PATH=path),
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^visits +log +1,?234 ", done.stdout, re.MULTILINE), done.stdout
    assert not (tmp_path / "drill").exists()
    assert len(list(backups.glob("topics-*.tar"))) == 1
