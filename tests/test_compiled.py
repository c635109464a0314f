"""Modules that mypyc compiles: rules against what it compiles wrongly without an error, and that they are loaded."""

import ast
import functools
import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.syntax import classes, every, functions, statements
from tools.compiled import ROOT, SOURCES, SUFFIX, module_paths
from topics.model.variant import VARIANT

# Their subclasses are made by Python itself.
NOT_NATIVE = ("Exception", "NamedTuple", "Protocol", "Enum", "IntEnum", "Flag", "IntFlag")

Rule = Callable[[ast.Module], Iterator[int]]


def defines_no_message(tree: ast.Module) -> Iterator[int]:
    """Of a field's type, `list[int]` or `int | None`, the compiled class keeps `list` or `object`."""
    for node in classes(tree):
        if any(ast.unparse(base).endswith("Struct") for base in node.bases):
            yield node.lineno


def yields_outside_of_except(tree: ast.Module) -> Iterator[int]:
    """The exception would be that of the caller, too, until the generator goes on."""
    for node in statements(tree):
        if isinstance(node, ast.ExceptHandler):
            yield from (inner.lineno for inner in ast.walk(node) if isinstance(inner, ast.Yield | ast.YieldFrom))


def slices_by_colon(tree: ast.Module) -> Iterator[int]:
    """`data[slice(…)]` of bytes is taken for an index."""
    for node in every(tree):
        index = node.slice if isinstance(node, ast.Subscript) else None
        if isinstance(index, ast.Call) and ast.unparse(index.func) == "slice":
            yield index.lineno


def names_no_keyword_of_c(tree: ast.Module) -> Iterator[int]:
    """An attribute `_thread` is `__thread` in C."""
    for node in every(tree):
        if isinstance(node, ast.Attribute) and node.attr in {"_thread", "_inline", "_asm", "_typeof", "_volatile"}:
            yield node.lineno


def keeps_no_function_alive(tree: ast.Module) -> Iterator[int]:
    """A nested function is kept by its environment in a generator, and if one nested function refers to another, or to
    a function that the outer one refers to: a cycle, and the server collects none."""
    called = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    imports = [
        name.asname or name.name for node in tree.body if isinstance(node, ast.ImportFrom) for name in node.names
    ]
    called |= {name for name in imports if name.islower()}
    for outer in functions(tree):
        if isinstance(outer, ast.AsyncFunctionDef):
            continue
        inner = [
            node for node in ast.walk(outer) if isinstance(node, ast.FunctionDef | ast.Lambda) and node is not outer
        ]
        named = {node.name for node in inner if isinstance(node, ast.FunctionDef)}
        inside = {id(node) for function in inner for node in ast.walk(function)}
        own = [node for node in ast.walk(outer) if id(node) not in inside]
        shared = named | called & {node.id for node in own if isinstance(node, ast.Name)}
        for node in (node for function in inner if named for node in ast.walk(function)):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in shared:
                yield node.lineno
        if named and any(isinstance(node, ast.Yield | ast.YieldFrom) for node in own):
            yield outer.lineno


def has_no_weak_references(tree: ast.Module) -> Iterator[int]:
    """A native class has none: @mypyc_attr(native_class=False)."""
    for node in classes(tree):
        if "__weakref__" in (text := ast.unparse(node)):
            yield from () if "native_class=False" in text else (node.lineno,)


def copies_no_object(tree: ast.Module) -> Iterator[int]:
    """`copy` makes an object of a native class by its constructor, without arguments."""
    for node in statements(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [node.module] if isinstance(node, ast.ImportFrom) else [name.name for name in node.names]
            yield from (node.lineno for module in modules if module == "copy")


RULES: tuple[Rule, ...] = (
    defines_no_message,
    yields_outside_of_except,
    slices_by_colon,
    names_no_keyword_of_c,
    keeps_no_function_alive,
    has_no_weak_references,
    copies_no_object,
)


@functools.cache
def complaints() -> dict[Rule, list[str]]:
    """By rule; a module is parsed once, and all rules look at it."""
    found: dict[Rule, list[str]] = {rule: [] for rule in RULES}
    for path in module_paths():
        tree = ast.parse((SOURCES / path).read_text())
        for rule in RULES:
            found[rule] += [f"{path}:{line}: {rule.__doc__}" for line in rule(tree)]
    return found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_compiled_module(rule: Rule) -> None:
    broken = complaints()[rule]
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
        (keeps_no_function_alive, "def f():\n    def g(): ...\n    def h():\n        g()\n    return h\n"),
        (keeps_no_function_alive, "def g(): ...\ndef f():\n    def h(): ...\n    g()\n    return h, lambda: g()\n"),
        (keeps_no_function_alive, "def f():\n    def g(): ...\n    yield g\n"),
        (has_no_weak_references, "class A:\n    __slots__ = ('__weakref__',)\n"),
        (copies_no_object, "from copy import copy\n"),
        (copies_no_object, "import copy\n"),
    ],
)
def test_a_rule_finds_what_breaks_it(rule: Rule, text: str) -> None:
    assert list(rule(ast.parse(text)))


def test_no_class_of_another_module_is_a_subclass_of_a_compiled_one() -> None:
    """It cannot be made, unless the compiled one allows it: @mypyc_attr(allow_interpreted_subclasses=True)."""
    compiled = {(SOURCES / path) for path in module_paths()}
    native = {
        (_module_of(path), node.name)
        for path in compiled
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
        and not any("mypyc_attr" in ast.unparse(each) for each in node.decorator_list)
        and not any(ast.unparse(base).startswith(NOT_NATIVE) for base in node.bases)
    }
    broken = [
        f"{path.relative_to(SOURCES)}:{node.lineno} {node.name}"
        for path in set((SOURCES / "topics").rglob("*.py")) - compiled
        for tree in [ast.parse(path.read_text())]
        for node in classes(tree)
        for base in node.bases
        if (_imported_from(tree).get(ast.unparse(base).partition("[")[0]), ast.unparse(base).partition("[")[0])
        in native
    ]
    assert not broken, "\n" + "\n".join(broken)


def _module_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCES).with_suffix("").parts)


def _imported_from(tree: ast.Module) -> dict[str, str | None]:
    return {name.name: node.module for node in tree.body if isinstance(node, ast.ImportFrom) for name in node.names}


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
