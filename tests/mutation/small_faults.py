"""The small faults that can be put into a module: comparisons turned, calls left out, numbers off by one."""

from __future__ import annotations

import ast
import re
from typing import Any, Final, NamedTuple

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
