"""What a user installs: the wheel holds the packages, the type marker and the command."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_the_wheel_holds_the_typed_package_and_the_command(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("topicsd-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (entry_points,) = (name for name in names if name.endswith("entry_points.txt"))
        assert "topics = topics.cli:main" in archive.read(entry_points).decode()
    assert "topics/py.typed" in names
    assert "topics/api/console/static/index.html" in names
    assert [name for name in names if name.startswith("topics/api/console/static/assets/") and name.endswith(".js")]
    assert not [name for name in names if name.startswith("tests/")]
