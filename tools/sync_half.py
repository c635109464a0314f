"""Makes the synchronous half of the client from the asynchronous one: python tools/sync_half.py [--check].

It works word by word: `await` and `async` are removed, asynchronous names are replaced by synchronous ones. Code that
differs otherwise is in `primitives.py` of each half, which is written by hand.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT = Path(__file__).parent.parent
CLIENT = ROOT / "src/topics/client"
BY_HAND: Final = frozenset(("__init__.py", "primitives.py"))

WORDS: Final = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "StopAsyncIteration": "StopIteration",
    "aclose": "close",
    "aread": "read",
    "aiter_raw": "iter_raw",
    "anext": "next",
    "asynchronous": "synchronous",
    "coroutine": "function",
}
_NOTE = "# Made by tools/sync_half.py from {source}: change that one.\n"
_FUTURE = "from __future__ import annotations\n"
_GONE = re.compile(r"\b(async|await) ")
_CLASSES = re.compile(r"\bAsync(?=[A-Z])")
_WORD = re.compile(r"\b(" + "|".join(WORDS) + r")\b")


def to_sync(text: str, source: str) -> str:
    text = text.replace("topics.client.aio", "topics.client.sync")
    text = _GONE.sub("", text)
    text = _WORD.sub(lambda found: WORDS[found[0]], text)
    text = _CLASSES.sub("", text)
    return _formatted(text.replace(_FUTURE, _NOTE.format(source=source) + _FUTURE, 1), source)


def _formatted(text: str, name: str) -> str:
    ruff = Path(sys.executable).parent / "ruff"
    for arguments in (("check", "--fix", "--unsafe-fixes", "--quiet", "--select", "I,UP028"), ("format", "--quiet")):
        command = [ruff, *arguments, "--stdin-filename", CLIENT / "sync" / Path(name).relative_to("aio"), "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


def halves() -> dict[Path, str]:
    """What the synchronous half should hold, by path."""
    aio = CLIENT / "aio"
    sources = [path for path in sorted(aio.rglob("*.py")) if path.name not in BY_HAND]
    return {
        CLIENT / "sync" / path.relative_to(aio): to_sync(path.read_text(), str(path.relative_to(CLIENT)))
        for path in sources
    }


def main() -> int:
    stale = {path: text for path, text in halves().items() if not path.exists() or path.read_text() != text}
    if "--check" in sys.argv:
        for path in stale:
            sys.stderr.write(f"{path.relative_to(ROOT)} is not current: run python tools/sync_half.py\n")
        return 1 if stale else 0
    for path, text in stale.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
