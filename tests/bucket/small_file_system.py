"""A file system of a few megabytes in a file: it is really full when it is filled, for all calls of all processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

PIECE = bytes(64 << 10)


class SmallFileSystem:
    """Mounted at `path`; `fill` takes all room that is left."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        with contextlib.suppress(OSError), open(self._ballast, "ab", buffering=0) as file:
            while True:
                file.write(PIECE)

    def make_room(self) -> None:
        self._ballast.unlink()

    @property
    def free_bytes(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize


@contextlib.contextmanager
def small_file_system(path: Path, size_bytes: int) -> Iterator[SmallFileSystem]:
    """ext4 through a loop device. Who may not mount skips the test, but not where all parts must be."""
    image = path.with_name(f"{path.name}.image")
    path.mkdir()
    try:
        with open(image, "wb") as file:
            file.truncate(size_bytes)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True, capture_output=True)
        subprocess.run(["mount", "-o", "loop", image, path], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        why = f"no file system can be mounted here, which needs root: {error}"
        pytest.fail(why) if os.environ.get("CI") == "true" else pytest.skip(why)
    try:
        yield SmallFileSystem(path)
    finally:
        # Lazily: a process that was killed may still have a file open.
        subprocess.run(["umount", "--lazy", path], check=True, capture_output=True)
        image.unlink()
