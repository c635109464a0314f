"""`python -m tests.fuzz [TARGET …]`: search for inputs that break a reader, for a while each; keeps those it finds.

With Atheris the search is guided by the branches that an input takes; without it, seeds are changed at random.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import random
import subprocess
import sys
import time
from pathlib import Path

from tests.fuzz.mutation import changed
from tests.fuzz.targets import TARGETS, inputs

BUILD = Path(__file__).parent.parent.parent / "build" / "fuzz"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"some of: {', '.join(TARGETS)}")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long each of them")
    parser.add_argument("--alone", action="store_true", help="search in this process, at random")
    options = parser.parse_args()
    names: list[str] = options.targets or list(TARGETS)
    guided = importlib.util.find_spec("atheris") is not None
    if options.alone:
        search(names[0], options.seconds)
        return 0
    broken: list[str] = []
    print(f"{len(names)} targets, {options.seconds:g} s each, {'guided by branches' if guided else 'at random'}")
    for name in names:
        seconds = str(options.seconds)
        guidance = ["tests.fuzz.guided", name, seconds, str(BUILD / name)]
        command = guidance if guided else ["tests.fuzz", name, "--alone", "--seconds", seconds]
        ended = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, errors="replace")
        runs = [line for line in (ended.stdout + ended.stderr).splitlines() if line.startswith(("Done ", "#"))]
        print(f"{name}: {'ok' if ended.returncode == 0 else 'BROKEN'}, {runs[-1] if runs else 'no run'}", flush=True)
        if ended.returncode:
            broken.append(name)
            print(*(ended.stdout + ended.stderr).splitlines()[-30:], sep="\n  ")
            print(f"the input is in {BUILD / name}; a fixed one belongs into tests/fuzz/corpus/{name}/")
    return 1 if broken else 0


def search(name: str, seconds: float) -> None:
    """Change seeds at random until the time is up."""
    rng = random.Random()
    until_s = time.monotonic() + seconds
    runs = 0
    while time.monotonic() < until_s:
        runs += 1
        data = changed(rng.choice(inputs(name)), inputs(name), rng)
        try:
            TARGETS[name].run(data)
        except BaseException:
            keep(name, data)
            raise
    print(f"Done {runs} runs")


def keep(name: str, data: bytes) -> None:
    place = BUILD / name
    place.mkdir(parents=True, exist_ok=True)
    (place / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)


if __name__ == "__main__":
    sys.exit(main())
