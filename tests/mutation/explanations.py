"""Why some mutants may survive: explained.toml, by module and by what a line was and became.

[["topics.storage.wal.frame"]]
line = "if size < SIZE_MAX:"
becomes = ["if size <= SIZE_MAX:"]
why = "a size is never the limit itself, because …"
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.mutation.search import Trial

FILE = Path(__file__).parent / "explained.toml"


class Explanations:
    """Of mutants, by module, line and what the line becomes."""

    def __init__(self) -> None:
        found = tomllib.loads(FILE.read_text()) if FILE.exists() else {}
        self._known = {
            (module, one["line"], becomes): one["why"]
            for module in found
            for one in found[module]
            for becomes in one["becomes"]
        }

    def __contains__(self, trial: Trial) -> bool:
        return (trial.module, trial.line, trial.becomes) in self._known

    def without_mutant(self, trials: Sequence[Trial]) -> Iterable[str]:
        """What is said about lines that are not there any more, in modules that all these trials are of."""
        modules = {trial.module for trial in trials}
        mutants = {(trial.module, trial.line, trial.becomes) for trial in trials}
        for module, line, becomes in self._known:
            if module in modules and (module, line, becomes) not in mutants:
                yield f"{module}: {line!r} → {becomes!r}"
