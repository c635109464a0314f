"""Runs every measurement of this folder, or those named: `python -m bench [name ...]`; each has a `main()`."""

import importlib
import signal
import sys
import traceback
from pathlib import Path


def names() -> list[str]:
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))


def run(name: str) -> bool:
    """Whether a measurement succeeded; a failed one does not stop the others."""
    print(f"\n## {name}\n", flush=True)
    try:
        importlib.import_module(f"bench.{name}").main()
    except SystemExit as end:
        if end.code:
            print(end.code, file=sys.stderr)
        return not end.code
    except Exception:  # noqa: BLE001 - told, and the next one is measured
        traceback.print_exc()
        return False
    return True


def main(wanted: list[str]) -> int:
    found = [name for name in names() if hasattr(importlib.import_module(f"bench.{name}"), "main")]
    if unknown := set(wanted) - set(found):
        print(
            f"bench: no measurement named {', '.join(sorted(unknown))}; there are: {', '.join(found)}", file=sys.stderr
        )
        return 2
    # The servers that a measurement has started end with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    went_well = [run(name) for name in wanted or found]
    return 0 if all(went_well) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
