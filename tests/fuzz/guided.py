"""One target handed to libFuzzer by Atheris, which is guided by the branches that an input takes."""

from __future__ import annotations

import hashlib
import importlib
import sys
from pathlib import Path
from typing import Any

atheris: Any = importlib.import_module("atheris")  # an extra, without packages for some platforms

# Packages whose branches guide the search; before anything imports them.
with atheris.instrument_imports(include=["topics", "h2", "hpack", "hyperframe", "websockets", "jwt"]):
    from tests.fuzz.targets import TARGETS, inputs

INPUT_BYTES_MAX = 8_192
INPUT_S_MAX = 20


def main(name: str, seconds: float, place: Path) -> None:
    """Does not return: libFuzzer ends the process. What breaks the target is left in `place`."""
    corpus = place / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for data in inputs(name):
        (corpus / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    limits = f"-max_total_time={max(1, round(seconds))} -max_len={INPUT_BYTES_MAX} -timeout={INPUT_S_MAX}"
    arguments = [sys.argv[0], str(corpus), f"-artifact_prefix={place}/", *limits.split()]
    atheris.Setup(arguments, TARGETS[name].run)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), Path(sys.argv[3]))
