"""Runs every measurement of this folder, or those named: `python -m bench [name ...]`; each has a `main()`."""

import importlib
import sys
from pathlib import Path


def names() -> list[str]:
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))


def main(wanted: list[str]) -> int:
    found = [name for name in names() if hasattr(importlib.import_module(f"bench.{name}"), "main")]
    if unknown := set(wanted) - set(found):
        print(
            f"bench: no measurement named {', '.join(sorted(unknown))}; there are: {', '.join(found)}", file=sys.stderr
        )
        return 2
    for name in wanted or found:
        print(f"\n## {name}\n", flush=True)
        importlib.import_module(f"bench.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
