"""The build hook of wheels: it adds the compiled modules where there is a C compiler, unless TOPICS_PURE=1.

Whatever prevents that is said, and the wheel is one of pure Python. With TOPICS_PURE=0 it is an error: an image that is
slower than it says would be noticed late. An editable install stays pure: an extension module beside a source that
changes would be imported instead of it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PURE = "TOPICS_PURE"


class CannotBeCompiled(Exception):
    """The wheel was to be compiled."""


class CompiledWheel(BuildHookInterface[Any]):
    """`dependencies` is called before `initialize`, by another process."""

    _folder: Path | None = None

    def dependencies(self) -> list[str]:
        """mypy itself, and what is imported: without its types the compiled code would be another."""
        if self._why_pure():
            return []
        return [self.config["compiler"], *self.metadata.core.dependencies]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        why = self._why_pure()
        if not why:
            # pip shows this with --verbose only
            self.app.display_info("topics: compiling, which takes a minute or two")
            self._folder = Path(tempfile.mkdtemp(prefix="topics-wheel-"))
            why = self._compile("--wheel", "--build", str(self._folder))
        if why and os.environ.get(PURE) == "0":
            self._clean()
            raise CannotBeCompiled(f"{PURE}=0 asks for the compiled modules, and they cannot be made: {why}")
        if why or self._folder is None:
            self.app.display_warning(f"topics: a wheel of pure Python, which is slower: {why}")
            return
        made = self._folder / "wheel"
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for path in sorted(made.rglob("*.so")):
            build_data["force_include"][str(path)] = path.relative_to(made).as_posix()

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        del version, build_data, artifact_path
        self._clean()

    def _clean(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _why_pure(self) -> str:
        if os.environ.get(PURE, "0") not in ("", "0"):
            return f"{PURE} is set"
        return self._compile("--check")

    def _compile(self, *arguments: str) -> str:
        """In a process of its own, since mypyc changes the one it runs in; empty, or why it failed."""
        command = [sys.executable, str(Path(self.root, "tools", "compiled.py")), *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if not done.returncode:
            return ""
        ended = f"the compiler was killed by signal {-done.returncode}" if done.returncode < 0 else ""
        return "\n".join(filter(None, (done.stdout[-4000:].rstrip(), ended)))
