"""Trees to measure side by side: revisions, compiled copies and directories that each have their own `topics`."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.report.page import ROOT, commit, git
from tests.serving import ServerProcess

CACHE = ROOT / ".venv" / "bench"
HERE = "."
COMPILED = "compiled:"
BUILD_S_MAX = 900


class TreeUnusable(Exception):
    """A requested tree cannot be measured."""


class Tree(NamedTuple):
    """A directory that holds the package `topics`, and its name in tables."""

    name: str
    path: Path

    @contextlib.contextmanager
    def serving(self, data_dir: Path, **settings: object) -> Iterator[ServerProcess]:
        server = TreeServer(self, data_dir, **settings)
        try:
            yield server.ready()
        finally:
            server.kill()


class TreeServer(ServerProcess):
    """`topics serve` of a tree; everything else comes from the interpreter that runs the bench."""

    def __init__(self, tree: Tree, data_dir: Path, **settings: object) -> None:
        start = "import sys; sys.argv[0] = 'topics'; from topics.cli import main; main()"
        self.command = ("env", f"PYTHONPATH={tree.path}", sys.executable, "-P", "-c", start)
        super().__init__(data_dir, **settings)


def trees() -> list[Tree]:
    """Those of BENCH_TREES; otherwise the working tree, and a compiled copy of it if it can be compiled."""
    wanted = [each.strip() for each in os.environ.get("BENCH_TREES", "").split(",") if each.strip()]
    found = [tree_of(each) for each in wanted] or [*_compiled_here(), tree_of(HERE)]
    names = [tree.name for tree in found]
    return [
        tree if names.count(tree.name) == 1 else tree._replace(name=f"{tree.name} #{place}")
        for place, tree in enumerate(found, 1)
    ]


def _compiled_here() -> list[Tree]:
    """A compiled copy of the working tree; if it cannot be compiled, a message says so."""
    try:
        return [tree_of(COMPILED + HERE)]
    except TreeUnusable as error:
        print(f"only the pure variant is measured: {error}", file=sys.stderr, flush=True)
        return []


def trees_for(bench: str) -> list[Tree]:
    """The trees; the bench ends here if there are none, or no wrk to measure them with."""
    if shutil.which("wrk") is None:
        sys.exit(f"bench {bench} needs wrk (Debian: apt install wrk)")
    try:
        return trees()
    except TreeUnusable as error:
        sys.exit(f"bench {bench}: {error}")


def tree_of(wanted: str) -> Tree:
    """`rev`, `compiled:rev`, `.` for the working tree, `compiled:.`, or a directory with a package `topics`."""
    if wanted.startswith(COMPILED):
        return _checked(_compiled(wanted.removeprefix(COMPILED) or HERE))
    if wanted == HERE:
        return _checked(Tree(_named(commit(), ROOT / "src"), ROOT / "src"))
    directory = Path(wanted).expanduser()
    if directory.is_dir():
        path = next((each for each in (directory, directory / "src") if (each / "topics").is_dir()), None)
        if path is None:
            raise TreeUnusable(f"{directory} contains no package `topics`")
        return _checked(Tree(_named(directory.name, path), path.resolve()))
    revision = _revision(wanted)
    path = _checkout(revision) / "src"
    return _checked(Tree(_named(revision, path), path))


def _named(name: str, path: Path) -> str:
    return f"{name}, {'compiled' if any((path / 'topics').rglob('*.so')) else 'pure'}"


def _revision(wanted: str) -> str:
    found = git("rev-parse", "--short", "--verify", f"{wanted}^{{commit}}")
    if not found:
        raise TreeUnusable(f"{wanted} is neither a revision nor a directory")
    return found


def _checkout(revision: str) -> Path:
    """The files of a revision, as git has them, without compiled files."""
    path = CACHE / "trees" / revision
    if not path.exists():
        fresh = path.with_name(f"{revision}.{os.getpid()}")
        fresh.mkdir(parents=True)
        archive = subprocess.Popen(["git", "archive", revision], cwd=ROOT, stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", str(fresh)], stdin=archive.stdout, check=True, timeout=300)
        if archive.wait(timeout=60):
            raise TreeUnusable(f"git archive {revision} failed")
        fresh.rename(path)
    return path


def _compiled(wanted: str) -> Tree:
    """The working tree as `make fast` compiles it; a revision as `pip install` does, in a directory."""
    if wanted == HERE:
        _build([sys.executable, "tools/compiled.py"], "the working tree")
        return Tree(f"{commit()}, compiled", ROOT / "build" / "compiled")
    name = _revision(wanted)
    path = CACHE / "compiled" / name
    if not path.exists():
        fresh = path.with_name(f"{name}.{os.getpid()}")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
        _build([*command, str(fresh), str(_checkout(name))], name)
        fresh.rename(path)
    if not any(path.rglob("*.so")):
        shutil.rmtree(path)
        raise TreeUnusable(f"{name}: pip install compiled nothing (is there a C compiler?)")
    return Tree(f"{name}, compiled", path)


def _build(command: list[str], name: str) -> None:
    # The first revisions that can be compiled want to be asked.
    environ = {**os.environ, "TOPICS_PURE": "0"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=BUILD_S_MAX, cwd=ROOT, env=environ
    )
    if done.returncode:
        raise TreeUnusable(f"compiling {name} failed: {done.stderr[-2000:]}")


def _checked(tree: Tree) -> Tree:
    """The tree, if its servers would import it."""
    command = ["env", f"PYTHONPATH={tree.path}", sys.executable, "-P", "-c", "import topics; print(topics.__file__)"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if not Path(done.stdout.strip()).is_relative_to(tree.path):
        raise TreeUnusable(f"{tree.name}: {tree.path} is not what is imported: {done.stdout}{done.stderr}")
    return tree
