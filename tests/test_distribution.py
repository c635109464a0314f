"""What a user installs: `pip install .` compiles or stays pure, and either variant answers."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.serving import ServerProcess, serving
from topics.model.variant import VARIANT

ROOT = Path(__file__).parent.parent
SITE = Path(pytest.__file__).parent.parent
# `make test-compiled` builds the compiled wheel as well.
INSTALLED = [("pure", "1"), ("compiled", "0")] if VARIANT == "compiled" else [("pure", "1")]


def wheel(folder: Path, **environ: str) -> Path:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, env={**os.environ, **environ})
    (made,) = folder.glob("topicsd-*.whl")
    return made


@pytest.mark.slow
def test_the_wheel_holds_the_typed_package_and_the_command(tmp_path: Path) -> None:
    made = wheel(tmp_path, TOPICS_PURE="1")
    with zipfile.ZipFile(made) as archive:
        names = archive.namelist()
        (entry_points,) = (name for name in names if name.endswith("entry_points.txt"))
        assert "topics = topics.cli:main" in archive.read(entry_points).decode()
    assert "topics/py.typed" in names
    assert "topics/api/console/static/index.html" in names
    assert [name for name in names if name.startswith("topics/api/console/static/assets/") and name.endswith(".js")]
    assert not [name for name in names if name.startswith("tests/") or name.endswith(".so")]
    assert made.name.endswith("-py3-none-any.whl")


@pytest.mark.slow
def test_without_a_compiler_that_works_the_wheel_is_pure_and_the_build_says_why(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    environ = {**os.environ, "CC": "false", "TOPICS_PURE": "0"}
    done = subprocess.run(build, cwd=ROOT, check=True, capture_output=True, text=True, env=environ)
    (made,) = tmp_path.glob("topicsd-*.whl")
    assert made.name.endswith("-py3-none-any.whl")
    assert "pure Python" in done.stderr
    assert "false" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("variant", "pure"), INSTALLED)
def test_pip_installs_either_variant(variant: str, pure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into a fresh venv, with what this one has already; compiling takes a minute or two."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    fresh = tmp_path / "venv" / "bin"
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(f"{SITE}\n")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    pip = [sys.executable, "-m", "pip", "--python", str(fresh / "python"), "install", "--quiet"]
    environ = {**os.environ, "TOPICS_PURE": pure}
    subprocess.run([*pip, "--no-deps", "--no-index", "--no-build-isolation", str(ROOT)], check=True, env=environ)
    version = subprocess.run([fresh / "topics", "--version"], check=True, capture_output=True, text=True)
    assert version.stdout.rstrip().endswith(f"({variant})")
    monkeypatch.setattr(ServerProcess, "command", (fresh / "topics",))
    with serving(tmp_path / "data") as server:
        client = server.client()
        client.append("a", 1, 2)
        assert client.get("/v0/health").json["variant"] == variant
        assert client.payloads("a", from_seq=0) == [1, 2]
