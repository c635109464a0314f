"""docs/BENCHMARKS.md: the parts that `BENCH_WRITE=1` writes, each between two markers, and the pictures they show."""

from __future__ import annotations

import datetime as dt
import os
import platform
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "BENCHMARKS.md"
PICTURES = ROOT / "docs" / "pictures"
HISTORY_ROWS_MAX = 12


class MarkersMissing(Exception):
    """The page has no markers for this part."""


def markers(name: str) -> tuple[str, str]:
    return f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"


def part(text: str, name: str) -> str:
    """The text between the markers of a name."""
    begin, end = markers(name)
    before, found, rest = text.partition(begin)
    inside, closed, _ = rest.partition(end)
    if not found or not closed:
        raise MarkersMissing(f"{PAGE.name} needs the lines {begin} and {end}")
    del before
    return inside.strip("\n")


def replaced(text: str, name: str, content: str) -> str:
    """The text with other content between the markers of a name."""
    part(text, name)
    begin, end = markers(name)
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{content.strip()}\n\n{end}{after}"


def with_history(old: str, head: str, rows: list[str]) -> str:
    """New rows before the existing rows of a table; a row with the same first cell is replaced."""

    def first(row: str) -> str:
        return row.split("|")[1].strip()

    columns = head.count("|") - 1
    lines = [line for line in old.splitlines() if line.startswith("|")]
    kept = lines[2:] if lines[:1] == [head] else []
    named = {first(row) for row in rows}
    all_rows = rows + [row for row in kept if first(row) not in named]
    return "\n".join([head, "|" + " --- |" * columns, *all_rows[:HISTORY_ROWS_MAX]])


def is_wanted() -> bool:
    return os.environ.get("BENCH_WRITE", "") not in ("", "0")


def write(parts: dict[str, str], pictures: dict[str, str]) -> None:
    """Write parts and pictures to docs/BENCHMARKS.md, if requested."""
    if not is_wanted():
        return
    text = PAGE.read_text()
    for name, content in parts.items():
        text = replaced(text, name, content)
    PICTURES.mkdir(exist_ok=True)
    for name, picture in pictures.items():
        (PICTURES / f"{name}.svg").write_text(picture)
    PAGE.write_text(text)


def commit() -> str:
    """The commit of the working tree, and whether its sources differ from it."""
    revision = git("rev-parse", "--short", "HEAD")
    return f"{revision} with changes" if git("status", "--porcelain", "--", "src") else revision


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.strip()


class Conditions:
    """When and on what machine a run was made: shown with its figures, which mean nothing without it."""

    def __init__(self) -> None:
        self._load_before = os.getloadavg()[0]
        self._day = dt.datetime.now(dt.UTC).date()

    @property
    def day(self) -> str:
        return self._day.isoformat()

    def sentence(self) -> str:
        loads = f"load {self._load_before:.1f} before and {os.getloadavg()[0]:.1f} after, the bench's own included"
        what = f"{os.cpu_count()} cores, Python {platform.python_version()}, Linux {platform.release().split('-')[0]}"
        return f"Commit {commit()}, {self.day}, {what}, {loads}."
