"""Which variant of the hot modules this process runs: compiled by mypyc, or pure Python."""

from __future__ import annotations

from typing import Literal

from topics.model import names

# Any of the modules that tools/compiled.py lists would do.
VARIANT: Literal["compiled", "pure"] = "pure" if names.__file__.endswith(".py") else "compiled"
