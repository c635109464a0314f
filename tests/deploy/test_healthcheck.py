"""deploy/healthcheck.py where probes need a key; tests/contract/test_tls.py has it with certificates."""

import subprocess
import sys
from pathlib import Path

from tests.cli.terminal import environ
from tests.deploy.parts import DEPLOY
from tests.patience import PATIENCE_S
from tests.serving import free_port, serving

CHECK = [sys.executable, DEPLOY / "healthcheck.py"]


def healthy(port: int, **env: str) -> bool:
    given = environ(None, TOPICS_PORT=str(port), **env)
    return subprocess.run(CHECK, env=given, capture_output=True, timeout=PATIENCE_S).returncode == 0


def test_a_key_is_sent_if_there_is_one(tmp_path: Path) -> None:
    with serving(tmp_path / "data", api_keys="secret", probe_auth=1) as server:
        assert not healthy(server.port)
        assert healthy(server.port, TOPICS_API_KEY="secret")


def test_a_server_that_is_not_there_is_not_healthy() -> None:
    assert not healthy(free_port())
