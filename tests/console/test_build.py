"""The committed files are what the sources make, and what is installed has them."""

import subprocess
from pathlib import Path

import pytest

from tests.console.browser import CONSOLE, MARKS, install
from topics.api.console.pages import STATIC

pytestmark = MARKS


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    install()
    folder = tmp_path_factory.mktemp("built")
    command = ["npm", "run", "build", "--", "--outDir", str(folder)]
    done = subprocess.run(command, cwd=CONSOLE, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_committed_files_are_what_the_sources_make(built: Path) -> None:
    made, committed = contents(built), contents(STATIC)
    assert set(made) == set(committed), "run: make console"
    assert [name for name in made if made[name] != committed[name]] == [], "run: make console"


def test_the_page_loads_nothing_from_elsewhere(built: Path) -> None:
    page = (built / "index.html").read_text()
    assert "http" not in page
    assert "<style" not in page
    assert "style=" not in page
    assert page.count("<script") == page.count('<script type="module" crossorigin src="./assets/') == 1
