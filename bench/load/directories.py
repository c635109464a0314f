"""Temporary directories on a real disk: a file system in memory would make every sync free."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.report.page import ROOT

IN_MEMORY = ("tmpfs", "ramfs")


def file_system(path: Path) -> str:
    """The type of the file system that holds a path."""
    best = ("", "")
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mounted, kind, *_ = line.split()
        if path.is_relative_to(mounted) and len(mounted) >= len(best[0]):
            best = (mounted, kind)
    return best[1]


@contextlib.contextmanager
def on_disk() -> Iterator[Path]:
    """A directory, removed afterwards; at BENCH_DIR, otherwise at the first usual place that is on a disk."""
    places = [Path(os.environ.get("BENCH_DIR") or tempfile.gettempdir()), Path("/var/tmp"), ROOT / ".venv"]
    place = next(each.resolve() for each in places if each.is_dir() and file_system(each.resolve()) not in IN_MEMORY)
    path = Path(tempfile.mkdtemp(prefix="topics-bench-", dir=place))
    # Postgres runs as another user, and needs access.
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
