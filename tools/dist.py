"""What is published: `python tools/dist.py FOLDER` builds the sources and, from them, a pure and a compiled wheel.

The pure wheel is built from the unpacked sources, so that a file that is missing in them is missed here. The compiled
one is built from the repository, where it takes what `make fast` has made; without a C compiler the last line says why
there is none.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent


def build(kind: str, folder: Path, source: Path, **environ: str) -> str:
    """By hatchling in this environment; what it had to say."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    done = subprocess.run(
        command, cwd=source, check=False, capture_output=True, text=True, env={**os.environ, **environ}
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}{done.stderr}\nthe {kind} could not be built")
    return done.stderr


def make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    build("sdist", folder, ROOT)
    (sources,) = folder.glob("*.tar.gz")
    with tempfile.TemporaryDirectory(prefix="topics-dist-") as scratch:
        with tarfile.open(sources) as archive:
            archive.extractall(scratch, filter="data")
        (unpacked,) = Path(scratch).iterdir()
        build("wheel", folder, unpacked, TOPICS_PURE="1")
    said = build("wheel", folder, ROOT, TOPICS_PURE="0")
    for path in sorted(folder.iterdir()):
        print(f"{path.stat().st_size / 1e6:6.2f} MB  {path}")
    if len(list(folder.glob("*.whl"))) < 2:
        print(said.strip())


if __name__ == "__main__":
    make(Path(sys.argv[1]).resolve())
