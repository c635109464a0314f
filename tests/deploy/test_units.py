"""The systemd units: what systemd itself says about them, and that the server behaves as they expect."""

import re
import socket
import subprocess
from pathlib import Path

import pytest

from tests.deploy.parts import DEPLOY, needs, program
from tests.patience import PATIENCE_S
from tests.serving import ServerProcess

UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
# Ten times what systemd calls the exposure of a service; a service without any hardening has about 95.
EXPOSURE_MAX = {"topics.service": 15, "topics-pipelines.service": 25}

pytestmark = needs("systemd-analyze")


@pytest.fixture(params=UNITS, ids=lambda unit: unit.name)
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy whose command is there: `verify` looks for it."""
    text = request.param.read_text()
    command = tmp_path / "topics"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    made = tmp_path / request.param.name
    made.write_text(text.replace("/opt/topics/bin/topics", str(command)))
    return made


def test_systemd_accepts_the_unit(unit: Path) -> None:
    done = subprocess.run(
        [program("systemd-analyze"), "verify", "--man=no", "--recursive-errors=no", unit],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_misspelt_setting_is_noticed(unit: Path) -> None:
    unit.write_text(unit.read_text().replace("ProtectSystem=", "ProtectSytem="))
    verify = [program("systemd-analyze"), "verify", "--man=no", "--recursive-errors=no", unit]
    assert "ProtectSytem" in subprocess.run(verify, capture_output=True, text=True).stderr


def test_the_unit_is_hardened(unit: Path) -> None:
    threshold = EXPOSURE_MAX[unit.name]
    security = [program("systemd-analyze"), "security", "--offline=yes", f"--threshold={threshold}", "--no-pager", unit]
    done = subprocess.run(security, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr


def test_without_the_hardening_it_would_be_noticed(unit: Path) -> None:
    unit.write_text(
        re.sub(
            r"^(Protect|Private|Restrict|SystemCall|Capability|DynamicUser).*\n",
            "",
            unit.read_text(),
            flags=re.MULTILINE,
        )
    )
    security = [program("systemd-analyze"), "security", "--offline=yes", "--threshold=40", "--no-pager", unit]
    assert subprocess.run(security, capture_output=True).returncode == 1


def test_the_server_reports_what_the_unit_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DEPLOY / "systemd" / "topics.service").read_text()
    assert "Type=notify\n" in text
    (watchdog_s,) = re.findall(r"^WatchdogSec=(\d+)$", text, re.MULTILINE)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", f"{watchdog_s}000000")
        server = ServerProcess(tmp_path / "data")
        told = ""
        while "WATCHDOG=1" not in told:
            told += f"{manager.recv(4096).decode()}\n"
        assert "READY=1" in told
        assert server.client().get("/v0/ready").status == 200
        assert server.terminate() == 0
        while "STOPPING=1" not in told:
            told += f"{manager.recv(4096).decode()}\n"


def test_a_setting_that_is_wrong_ends_with_the_code_that_is_not_tried_again(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / "topics.service").read_text()
    (code,) = re.findall(r"^RestartPreventExitStatus=(\d+)$", text, re.MULTILINE)
    assert ServerProcess(tmp_path / "data", host="0.0.0.0").exit_code() == int(code)
