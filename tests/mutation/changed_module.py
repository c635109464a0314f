"""A module of the product with other bytes: what an import finds in place of those on disk."""

from __future__ import annotations

import importlib.abc
import importlib.util
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parent.parent.parent / "src"


def path_of(module: str) -> Path:
    return SOURCE / (module.replace(".", "/") + ".py")


class Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from other bytes."""

    def __init__(self, module: str, source: bytes) -> None:
        self._module = module
        self._source = source

    def find_spec(self, fullname: str, path: object, target: object = None) -> Any:
        del path, target
        if fullname != self._module:
            return None
        return importlib.util.spec_from_loader(fullname, self, origin=str(path_of(fullname)))

    def exec_module(self, module: Any) -> None:
        module.__file__ = str(path_of(self._module))
        exec(compile(self._source, module.__file__, "exec"), module.__dict__)
