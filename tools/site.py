"""The pages as a site: `python tools/site.py FOLDER` lays README and docs/ out and runs MkDocs over them.

Links between pages stay; a link to another file of the repository leads to a copy of it, one to a folder to nothing. A
link that leads nowhere, also to a heading, ends the build.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PAGES: Final = ROOT / "build" / "pages"
LINK: Final = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def lay_out() -> None:
    shutil.rmtree(PAGES, ignore_errors=True)
    PAGES.mkdir(parents=True)
    for source in [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        write(source)
    shutil.copytree(ROOT / "docs" / "images", PAGES / "images")
    adrs = sorted((ROOT / "docs" / "adr").glob("*.md"))
    titles = [adr.read_text().partition("\n")[0].removeprefix("# ") for adr in adrs]
    lines = [f"* [{title}](adr/{adr.name})" for title, adr in zip(titles, adrs, strict=True)]
    (PAGES / "DECISIONS.md").write_text("\n".join(["# Decisions", "", *lines, ""]))


def place(path: Path) -> Path:
    """Where a file of the repository is among the pages."""
    if path == ROOT / "README.md":
        return PAGES / "index.md"
    inside = path.relative_to(ROOT)
    if inside.parts[0] == "docs" or path == ROOT / "CHANGELOG.md":
        return PAGES / Path(*inside.parts[inside.parts[0] == "docs" :])
    return PAGES / "files" / inside


def write(source: Path) -> None:
    target = place(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(
        part if index % 2 else LINK.sub(lambda found: relinked(found, source), part)
        for index, part in enumerate(re.split(r"(^```.*?^```)", source.read_text(), flags=re.MULTILINE | re.DOTALL))
    )
    target.write_text(text)


def relinked(found: re.Match[str], source: Path) -> str:
    picture, text, address, anchor = found.groups()
    if "://" in address:
        return found[0]
    aim = (source.parent / address).resolve()
    if aim.is_dir():
        return text
    if not aim.exists():
        # MkDocs names it.
        return found[0]
    target = place(aim)
    if target.is_relative_to(PAGES / "files") and not target.exists():
        copy(aim, target)
    return f"{picture}[{text}]({os.path.relpath(target, place(source).parent)}{anchor or ''})"


def copy(source: Path, target: Path) -> None:
    if source.suffix == ".md":
        write(source)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


def main(folder: Path) -> None:
    lay_out()
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    # Its own advice about its next version is not about these pages.
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
    done = subprocess.run(command, cwd=ROOT, check=False, env=environ)
    if done.returncode:
        sys.exit("the site was not built: see above")
    print(f"open {folder / 'index.html'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
