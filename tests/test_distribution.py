"""What a user installs: `pip install .` compiles or stays pure, and either variant answers."""

import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hatchling.bridge.app import Application

from tests.serving import ServerProcess, serving
from tools.compiled import CannotCompile, c_compiler
from tools.wheel_hook import CannotBeCompiled, CompiledWheel

ROOT = Path(__file__).parent.parent
SITE = Path(pytest.__file__).parent.parent


def wheel(folder: Path, **environ: str) -> tuple[Path, str]:
    """A wheel, and what the build said."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(build, cwd=ROOT, check=True, capture_output=True, text=True, env={**os.environ, **environ})
    (made,) = folder.glob("topicsd-*.whl")
    return made, done.stderr


def can_compile() -> bool:
    try:
        return bool(c_compiler())
    except CannotCompile:
        return False


@pytest.mark.slow
def test_the_wheel_holds_the_typed_package_and_the_command(tmp_path: Path) -> None:
    made, _ = wheel(tmp_path, TOPICS_PURE="1")
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
    made, said = wheel(tmp_path, CC="false")
    assert made.name.endswith("-py3-none-any.whl")
    assert "pure Python" in said
    assert "false" in said


def test_an_editable_install_is_pure(tmp_path: Path) -> None:
    nothing: Any = None
    hook = CompiledWheel(str(ROOT), {}, nothing, nothing, str(tmp_path), "wheel")
    build_data: dict[str, Any] = {"force_include": {}}
    hook.initialize("editable", build_data)
    assert build_data == {"force_include": {}}


def test_a_wheel_that_must_be_compiled_is_not_built_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of `pip install --quiet`, as in the Dockerfile, nobody sees a warning."""
    nothing: Any = None
    hook = CompiledWheel(str(ROOT), {}, nothing, nothing, str(tmp_path), "wheel")
    monkeypatch.setattr(hook, "_compile", lambda *_: "cc: not found")
    monkeypatch.setenv("TOPICS_PURE", "0")
    with pytest.raises(CannotBeCompiled, match="they cannot be made: cc: not found"):
        hook.initialize("standard", {"force_include": {}})


def test_a_compiler_that_was_killed_is_reported_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the kernel does when a container has too little memory for it."""
    tools = tmp_path / "tools"
    tools.mkdir()
    killed = 'import os, sys\nif "--check" not in sys.argv:\n    os.kill(os.getpid(), 9)\n'
    (tools / "compiled.py").write_text(killed)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setenv("TOPICS_PURE", "0")
    nothing: Any = None
    hook = CompiledWheel(str(tmp_path), {}, nothing, nothing, str(tmp_path), "wheel", Application())
    with pytest.raises(CannotBeCompiled, match="killed by signal 9"):
        hook.initialize("standard", {"force_include": {}})
    assert list(scratch.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("variant", "pure"), [("pure", "1"), ("compiled", "")])
def test_pip_installs_either_variant(variant: str, pure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into a fresh venv, with what this one has already; compiling takes a minute or two, unless `make fast` has."""
    if variant == "compiled" and not can_compile():
        pytest.skip("there is no C compiler")
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
