"""Programs that tests of deploy/ run: in CI a missing one is a failure, elsewhere a skipped test."""

import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
# What `make` installs for publishing.
PUBLISH = ROOT / ".venv" / "publish" / "bin"
IN_CI = os.environ.get("CI") == "true"
SBIN = f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin{os.pathsep}/sbin"


def needs(*programs: str) -> list[pytest.MarkDecorator]:
    """The marks of tests that run these programs."""
    missing = [name for name in programs if shutil.which(name, path=SBIN) is None]
    if not missing or IN_CI:
        return [pytest.mark.slow]
    return [pytest.mark.slow, pytest.mark.skip(reason=f"not installed: {', '.join(missing)} (make test installs them)")]


def program(name: str) -> str:
    found = shutil.which(name, path=SBIN)
    assert found is not None, f"CI must have {name}"
    return found
