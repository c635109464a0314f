"""What is published: each file is installed into a fresh venv, without the repository, and used from there."""

import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.terminal import environ
from tests.deploy.parts import IN_CI, PUBLISH, ROOT
from tests.live.rig import eventually
from tests.patience import PATIENCE_S
from tests.serving import ServerProcess, free_port, serving
from tools import dist

SITE = Path(pytest.__file__).parent.parent
README = (ROOT / "README.md").read_text()
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """As `make dist` makes it. Compiling takes a minute or two, unless `make fast` has done it."""
    folder = tmp_path_factory.mktemp("dist")
    dist.make(folder)
    kinds = {".tar.gz": "sources", "-none-any.whl": "pure"}
    return {
        next((kind for ending, kind in kinds.items() if path.name.endswith(ending)), "compiled"): path
        for path in folder.iterdir()
    }


class Installed(NamedTuple):
    folder: Path
    kind: str
    file: Path

    def run(self, *command: str, **env: str) -> str:
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            command,
            env=environ(None, PATH=path, **env),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        )
        return done.stdout


@pytest.fixture(scope="module", autouse=True)
def without_the_sources() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONPATH", raising=False)
        yield


@pytest.fixture(scope="module", params=["sources", "pure", "compiled"])
def installed(
    request: pytest.FixtureRequest, published: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    """What it depends on is that of the tests: an index would give the same."""
    if request.param not in published and not IN_CI:
        pytest.skip("there is no C compiler")
    place = tmp_path_factory.mktemp("installed")
    folder, file = place / "venv", published[request.param]
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(f"{SITE}\n")
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet"]
    command = [*pip, "--no-deps", "--no-index", "--no-build-isolation", str(file)]
    subprocess.run(command, check=True, cwd=place, env=environ(None, TOPICS_PURE="1"))
    return Installed(folder, request.param, file)


def first_minute() -> list[str]:
    """The commands of the section, in a shell where `topics` is found."""
    section = README.split("## First append, in a minute")[1].split("\n## ")[0]
    blocks = re.findall(r"```(console|sh)\n(.*?)```", section, re.DOTALL)
    commands: list[str] = []
    for language, body in blocks:
        commands += re.findall(r"^\$ (.*)$", body, re.MULTILINE) if language == "console" else [body]
    return [command for command in commands if not command.startswith(". .venv")]


def test_the_first_minute_of_the_readme_works_without_the_repository(
    installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = installed.run("python", "-c", "import topics, topics_spark; print(topics.__file__, topics_spark.__file__)")
    assert [path for path in where.split() if not path.startswith(str(installed.folder))] == []
    monkeypatch.setattr(ServerProcess, "command", (installed.folder / "bin" / "topics",))
    port = free_port()
    with serving(tmp_path / "data", port=port) as server:
        printed = ""
        for command in (text.replace("4000", str(port)) for text in first_minute()):
            if " -f " in command:
                printed += followed(installed, command.replace(" -f ", " "), port)
            else:
                printed += installed.run("bash", "-euc", command, TOPICS_PORT=str(port))
        assert '"page": "/docs", "ms": 7' in printed
        assert '"amount": 9.90' in printed
        assert server.client().get("/v0/health").json["variant"] == (
            "compiled" if installed.kind == "compiled" else "pure"
        )
        assert server.client().get("/console/").status == 200


def followed(installed: Installed, command: str, port: int) -> str:
    """A tail that would not end is asked until it shows what the page promises."""
    printed = ""

    def shows() -> bool:
        nonlocal printed
        printed = installed.run("bash", "-euc", command, TOPICS_PORT=str(port))
        return printed.count('"$seq"') == 2

    eventually(shows)
    return printed


def test_a_hint_names_an_installation_that_works_from_there(installed: Installed) -> None:
    """By pip itself, which only looks: the file is what it says, and has the extra."""
    ask = "from topics.model.extras import install_command; print(install_command('spark'))"
    hint = installed.run("python", "-c", ask).strip()
    assert hint == f"pip install 'topicsd[spark] @ {installed.file.as_uri()}'"
    look = hint.replace(
        "pip install", f"{sys.executable} -m pip install --dry-run --no-deps --no-index --no-build-isolation"
    )
    assert "topicsd" in installed.run("bash", "-euc", look, TOPICS_PURE="1")


def test_what_is_published_can_be_shown_by_an_index(published: dict[str, Path]) -> None:
    twine = PUBLISH / "twine"
    if not twine.exists() and not IN_CI:
        pytest.skip("twine is not installed (make test installs it)")
    done = subprocess.run([twine, "check", "--strict", *set(published.values())], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_a_pattern_in_the_pages_means_one_file(published: dict[str, Path]) -> None:
    """pip refuses two wheels of one package."""
    if "compiled" not in published and not IN_CI:
        pytest.skip("there is no C compiler")
    folder = published["sources"].parent
    patterns = re.findall(r"\bdist/(topicsd-[^\s`]*)", (ROOT / "docs" / "PRODUCTION.md").read_text())
    found = {pattern: list(folder.glob(pattern)) for pattern in patterns}
    assert {path for paths in found.values() for path in paths} == {published["pure"], published["compiled"]}
    assert [pattern for pattern, paths in found.items() if len(paths) != 1] == []


def test_the_sources_have_what_their_tests_need(published: dict[str, Path]) -> None:
    names = subprocess.run(["tar", "-tf", published["sources"]], capture_output=True, text=True, check=True).stdout
    inside = {name.partition("/")[2] for name in names.splitlines()}
    assert {
        "Dockerfile",
        "deploy/prometheus/rules.yml",
        "examples/worker.py",
        "tests/conftest.py",
        ".ci/packages",
    } <= inside
