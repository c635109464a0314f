"""Mutation testing: small faults put into one function at a time, and the tests that must notice each of them.

    python tools/mutants.py MODULE … [--sample N] [--show FILE]

A parent process has the libraries imported and forks for each mutant: the fork imports the product with one changed
module and runs the tests of that module until one fails. What no test notices survives, and is printed with its line.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.abc
import importlib.util
import os
import random
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
# Longer than the tests of any module take; a mutant that loops is noticed by that.
MUTANT_S_MAX = 240

# What is mutated, and the tests that are meant to notice: quick ones first.
TESTS: Final = {
    "topics.storage.wal.frame": "storage/test_frame.py storage/test_recovery.py storage/test_wal.py",
    "topics.storage.wal.log_scan": "storage/test_frame.py storage/test_recovery.py",
    "topics.storage.wal.replay": "storage/test_recovery.py storage/test_power_loss.py",
    "topics.storage.wal.wal": "storage/test_wal.py storage/test_recovery.py storage/test_syncer.py",
    "topics.storage.wal.sync_mark": "storage/test_sync_mark.py",
    "topics.engine.core.state": "engine/test_append.py engine/test_recovery.py engine/test_retention.py "
    "engine/test_topics.py engine/test_deletes.py engine/test_idempotency.py engine/test_checkpoint.py "
    "engine/test_quotas.py engine/test_classes.py txns/test_transactions.py routers/test_recovery.py "
    "engine/test_durability.py",
    "topics.engine.core.fold": "model/test_ops.py engine/test_append.py engine/test_recovery.py engine/test_deletes.py "
    "multi_append/test_multi_append.py",
    "topics.engine.opening.single_appends": "engine/test_single_appends.py engine/test_recovery.py",
    "topics.engine.opening.loss_estimates": "crash/test_estimates.py engine/test_recovery.py",
    "topics.engine.opening.restore": "engine/test_recovery.py engine/test_checkpoint.py",
    "topics.engine.opening.store": "engine/test_recovery.py engine/test_opening_steps.py engine/test_durability.py "
    "engine/test_turns.py crash/test_estimates.py engine/test_checkpoint.py engine/test_backup.py",
}
COMPARISONS: Final = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}  # fmt: skip
OPERATORS: Final = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "//"), ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "*"),
    ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"), ast.BitXor: ("^", "&"), ast.LShift: ("<<", ">>"),
}  # fmt: skip


class Mutant(NamedTuple):
    """Bytes from … to of the source become `text`."""

    line: int
    start: int
    stop: int
    text: bytes
    what: str

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.text + source[self.stop :]


class Finder(ast.NodeVisitor):
    """Every mutant of a module, in the order of its lines."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._line_starts = [0]
        for line in source.splitlines(keepends=True):
            self._line_starts.append(self._line_starts[-1] + len(line))
        self.found: list[Mutant] = []
        self.visit(ast.parse(source))
        self.found.sort()

    def _start(self, node: Any) -> int:
        return self._line_starts[node.lineno - 1] + node.col_offset

    def _stop(self, node: Any) -> int:
        return self._line_starts[node.end_lineno - 1] + node.end_col_offset

    def _add(self, node: Any, start: int, stop: int, text: str, what: str) -> None:
        self.found.append(Mutant(node.lineno, start, stop, text.encode(), what))

    def _replace_between(self, left: ast.AST, right: ast.AST, old: str, new: str) -> None:
        start, stop = self._stop(left), self._start(right)
        between = self._source[start:stop].decode()
        changed, count = re.subn(rf"(?<![\w<>=!]){re.escape(old)}(?![\w<>=])", new, between, count=1)
        if count:
            self._add(right, start, stop, changed, f"{old} → {new}")

    # --- what is left alone: types, texts for people, and what only a bug can break ---

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
            self.visit(default)
        for statement in node.body:
            self.visit(statement)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None: ...

    def visit_Assert(self, node: ast.Assert) -> None: ...

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) != "TYPE_CHECKING":
            self._negate(node.test)
            self.generic_visit(node)

    # --- what is changed ---

    def visit_While(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self._negate(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def _negate(self, test: ast.expr) -> None:
        text = self._source[self._start(test) : self._stop(test)].decode()
        self._add(test, self._start(test), self._stop(test), f"(not ({text}))", "negated")

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, op, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            self._replace_between(left, right, *COMPARISONS[type(op)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        pair = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._replace_between(left, right, *pair)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in OPERATORS and not isinstance(node.right, ast.JoinedStr):
            self._replace_between(node.left, node.right, *OPERATORS[type(node.op)])
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.op, ast.Add | ast.Sub):
            old, new = ("+=", "-=") if isinstance(node.op, ast.Add) else ("-=", "+=")
            self._replace_between(node.target, node.value, old, new)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add(node, self._start(node), self._stop(node), str(not node.value), f"{node.value} changed")
        elif isinstance(node.value, int):
            self._add(node, self._start(node), self._stop(node), str(node.value + 1), f"{node.value} + 1")

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self._add(node, self._start(node.value), self._stop(node.value), "None", "returns None")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        called = node.value
        if isinstance(called, ast.Call) and not ast.unparse(called.func).startswith(("logger.", "log.", "super()")):
            self._add(node, self._start(node), self._stop(node), "pass", "not called")
            self.generic_visit(node)
        elif isinstance(called, ast.Yield | ast.YieldFrom):
            self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if isinstance(node.targets[0], ast.Attribute | ast.Subscript):
            self._add(node, self._start(node), self._stop(node), "pass", "not assigned")
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._add(node, self._start(node), self._stop(node), "pass", "not raised")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._add(node, self._start(node), self._stop(node), "break", "break instead of continue")

    def visit_Break(self, node: ast.Break) -> None:
        self._add(node, self._start(node), self._stop(node), "continue", "continue instead of break")


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


def path_of(module: str) -> Path:
    return SOURCE / (module.replace(".", "/") + ".py")


def is_noticed(module: str, source: bytes) -> bool:
    """Whether the tests of the module fail with this source, in a process of its own."""
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nowhere, number)
        sys.meta_path.insert(0, Changed(module, source))
        import pytest

        paths = [str(ROOT / "tests" / name) for name in TESTS[module].split()]
        options = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not slow and not crash"]
        code: int = 1
        with contextlib.suppress(BaseException):
            code = int(pytest.main([*options, *paths]))
        os._exit(code)
    until_s = time.monotonic() + MUTANT_S_MAX
    while time.monotonic() < until_s:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status != 0
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def chosen(module: str, sample: int, seed: int) -> Iterator[tuple[bytes, Mutant]]:
    source = path_of(module).read_bytes()
    found = Finder(source).found
    if sample:
        found = sorted(random.Random(f"{seed} {module}").sample(found, min(sample, len(found))))
    for mutant in found:
        with contextlib.suppress(SyntaxError):
            ast.parse(mutant.applied(source))
            yield source, mutant


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", help=f"some of: {', '.join(TESTS)}")
    parser.add_argument("--sample", type=int, default=0, help="at most so many of each module, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lines", default="", help="only mutants in these lines, like 10,20-30")
    options = parser.parse_args()
    os.chdir(ROOT)
    os.environ["HYPOTHESIS_PROFILE"] = "few"
    sys.path.insert(0, str(ROOT))
    # What a fork would otherwise import again; nothing of the product, which a mutant has to be part of.
    for name in ("pytest", "msgspec", "xxhash", "httptools", "h2.connection", "websockets", "asyncio"):
        importlib.import_module(name)
    survivors = total = 0
    for module in options.modules or TESTS:
        if is_noticed(module, path_of(module).read_bytes()):
            print(f"{module}: its tests fail without any change")
            return 2
        noticed = 0
        mutants = list(chosen(module, options.sample, options.seed))
        for source, mutant in mutants:
            if options.lines and mutant.line not in _lines(options.lines):
                continue
            total += 1
            if is_noticed(module, mutant.applied(source)):
                noticed += 1
            else:
                survivors += 1
                line = source.decode().splitlines()[mutant.line - 1].strip()
                print(
                    f"survived: {module}:{mutant.line} {mutant.what} ({mutant.text.decode()[:80]!r}): {line}",
                    flush=True,
                )
        print(f"{module}: {noticed} of {len(mutants)} mutants noticed", flush=True)
    print(f"{total} mutants, {survivors} survived")
    return 1 if survivors else 0


def _lines(text: str) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


if __name__ == "__main__":
    sys.exit(main())
