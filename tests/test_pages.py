"""Links of README and docs: each leads to a file that exists and to a heading of it; and the site is built of them."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.parts import IN_CI, PUBLISH

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *ROOT.glob("examples/**/*.md"),
]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def headings(page: Path) -> set[str]:
    """As GitHub names them."""
    found = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in found}


def broken(page: Path, text: str) -> Iterator[str]:
    for link in LINK.findall(text):
        address, _, anchor = link.partition("#")
        if "://" in address or address.startswith("mailto:"):
            continue
        target = (page.parent / address).resolve() if address else page
        if not target.exists() or (anchor and anchor not in headings(target)):
            yield f"{page.relative_to(ROOT)}: {link}"


def test_every_link_leads_somewhere() -> None:
    assert len(PAGES) > 30
    assert [link for page in PAGES for link in broken(page, prose(page))] == []


@pytest.mark.parametrize("link", ["[a](docs/NOWHERE.md)", "[a](docs/API.md#no-such-heading)", "[a](#nor-this)"])
def test_one_that_leads_nowhere_is_found(link: str) -> None:
    assert list(broken(ROOT / "README.md", link))


def test_every_page_can_be_reached_from_the_readme_in_a_table() -> None:
    linked = set(LINK.findall((ROOT / "README.md").read_text()))
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} - linked == set()


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    named = (ROOT / "mkdocs.yml").read_text()
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f": {page.name}\n" not in named] == []


@pytest.mark.slow
def test_the_site_is_built_and_can_be_searched(tmp_path: Path) -> None:
    python = PUBLISH / "python"
    if not python.exists() and not IN_CI:
        pytest.skip("MkDocs is not installed (make test installs it)")
    done = subprocess.run([python, "tools/site.py", tmp_path / "site"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    index = (tmp_path / "site" / "search" / "search_index.json").read_text()
    assert "The backup drill" in index
    home = (tmp_path / "site" / "index.html").read_text()
    assert "fonts.googleapis.com" not in home
    assert (tmp_path / "site" / "files" / "deploy" / "proxy" / "Caddyfile").exists()
