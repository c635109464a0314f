"""Modules that mypyc compiles: rules against what it compiles wrongly without an error, and that they are loaded."""

import ast
import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tools.compiled import ROOT, SOURCES, SUFFIX, module_paths
from topics.model.variant import VARIANT

Rule = Callable[[ast.Module], Iterator[int]]


def defines_no_message(tree: ast.Module) -> Iterator[int]:
    """Of a field's type, `list[int]` or `int | None`, the compiled class keeps `list` or `object`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).endswith("Struct") for base in node.bases):
            yield node.lineno


def yields_outside_of_except(tree: ast.Module) -> Iterator[int]:
    """The exception would be that of the caller, too, until the generator goes on."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            yield from (inner.lineno for inner in ast.walk(node) if isinstance(inner, ast.Yield | ast.YieldFrom))


def slices_by_colon(tree: ast.Module) -> Iterator[int]:
    """`data[slice(…)]` of bytes is taken for an index."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and ast.unparse(node.slice).startswith("slice("):
            yield node.lineno


def names_no_keyword_of_c(tree: ast.Module) -> Iterator[int]:
    """An attribute `_thread` is `__thread` in C."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in {"_thread", "_inline", "_asm", "_typeof", "_volatile"}:
            yield node.lineno


def calls_no_function_beside_it(tree: ast.Module) -> Iterator[int]:
    """Nested functions that refer to each other are kept by each other, and the server collects no cycles."""
    for outer in ast.walk(tree):
        if isinstance(outer, ast.FunctionDef):
            nested = [node for node in ast.walk(outer) if isinstance(node, ast.FunctionDef) and node is not outer]
            names = {node.name for node in nested}
            for node in (inner for function in nested for inner in ast.walk(function)):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names:
                    yield node.lineno


def has_no_weak_references(tree: ast.Module) -> Iterator[int]:
    """A native class has none: @mypyc_attr(native_class=False)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and "__weakref__" in (text := ast.unparse(node)):
            yield from () if "native_class=False" in text else (node.lineno,)


RULES: tuple[Rule, ...] = (
    defines_no_message,
    yields_outside_of_except,
    slices_by_colon,
    names_no_keyword_of_c,
    calls_no_function_beside_it,
    has_no_weak_references,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_compiled_module(rule: Rule) -> None:
    broken = [
        f"{path}:{line}: {rule.__doc__}"
        for path in module_paths()
        for line in rule(ast.parse((SOURCES / path).read_text()))
    ]
    assert not broken, "\n" + "\n".join(broken)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (defines_no_message, "class A(msgspec.Struct, array_like=True):\n    a: list[int]\n"),
        (
            yields_outside_of_except,
            "def f():\n    try:\n        g()\n    except OSError:\n        yield 1\n",
        ),
        (slices_by_colon, "a = data[slice(*bounds)]\n"),
        (names_no_keyword_of_c, "self._thread = thread\n"),
        (calls_no_function_beside_it, "def f():\n    def g(): ...\n    def h():\n        g()\n    return h\n"),
        (has_no_weak_references, "class A:\n    __slots__ = ('__weakref__',)\n"),
    ],
)
def test_a_rule_finds_what_breaks_it(rule: Rule, text: str) -> None:
    assert list(rule(ast.parse(text)))


def test_the_compiled_modules_are_those_that_are_loaded() -> None:
    names = [path.removesuffix(".py").replace("/", ".") for path in module_paths()]
    loaded = {Path(importlib.import_module(name).__file__ or "").name.partition(".")[2] for name in names}
    assert loaded == {SUFFIX.removeprefix(".") if VARIANT == "compiled" else "py"}


def test_a_copy_of_other_sources_is_not_current(tmp_path: Path) -> None:
    copy = tmp_path / "compiled"
    copy.mkdir()
    (copy / "compiled-from").write_text("other sources")
    command = [sys.executable, ROOT / "tools" / "compiled.py", "--current", "--build", tmp_path]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == ""


def test_a_compiler_that_does_not_work_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "false")
    command = [sys.executable, ROOT / "tools" / "compiled.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "false" in done.stderr) == (1, True)
