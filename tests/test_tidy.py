"""The style rules that a machine can hold: what each file says, how long it grows, what it may not contain."""

import ast
import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.syntax import every, functions, parsed

ROOT = Path(__file__).parent.parent
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60
VAGUE_NAMES = {"util", "utils", "helper", "helpers", "common", "manager", "misc"}
# Split, so that this file does not find itself.
LEFT_FOR_LATER = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X"]) + r")\b")
MUTABLE_CALLS = {"dict", "list", "set", "defaultdict", "deque", "OrderedDict", "Counter", "WeakValueDictionary"}


class Source(NamedTuple):
    """One Python file, named by its path from the root of the repository."""

    path: str
    text: str

    @property
    def in_src(self) -> bool:
        return self.path.startswith("src/")

    @property
    def tree(self) -> ast.Module:
        return parsed(self.text)


Rule = Callable[[Source], Iterator[str]]


def opens_with_what_it_owns(source: Source) -> Iterator[str]:
    lines = source.text.splitlines()
    if lines and lines[0].startswith("#!"):
        lines = lines[1:]
    if not lines or not lines[0].startswith('"""'):
        yield "the first line is not a docstring that says what the file owns"
        return
    first = (ast.get_docstring(source.tree) or "").partition("\n")[0].strip()
    if len(first.split()) < 3 or re.search(r"\b(module|package|file)\b\.?$", first, re.IGNORECASE):
        yield f"the first line says nothing: {first!r}"


def stays_short(source: Source) -> Iterator[str]:
    length = len(source.text.splitlines())
    if source.in_src and length > FILE_LINES_MAX:
        yield f"{length} lines, at most {FILE_LINES_MAX}"


def has_short_functions(source: Source) -> Iterator[str]:
    for node in functions(source.tree):
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > FUNCTION_LINES_MAX:
            yield f"line {node.lineno}: {node.name} has {length} lines, at most {FUNCTION_LINES_MAX}"


def leaves_nothing_for_later(source: Source) -> Iterator[str]:
    for number, line in enumerate(source.text.splitlines(), 1):
        if found := LEFT_FOR_LATER.search(line):
            yield f"line {number}: {found[0]}"


def has_a_noun_for_a_name(source: Source) -> Iterator[str]:
    words = {word for part in Path(source.path).with_suffix("").parts for word in part.split("_")}
    if vague := words & VAGUE_NAMES:
        yield f"a name that fits everything: {', '.join(sorted(vague))}"


def prints_only_in_the_command_line(source: Source) -> Iterator[str]:
    if not source.in_src or source.path.startswith("src/topics/cli/") or not re.search(r"\bprint\b", source.text):
        return
    for node in every(source.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield f"line {node.lineno}: print"


def keeps_no_state_in_modules(source: Source) -> Iterator[str]:
    """A table written out in full is a constant if it is typed as one (Final, Mapping); an empty one is state."""
    if not source.in_src:
        return
    for node in source.tree.body:
        if isinstance(node, ast.Assign):
            value, annotation = node.value, ""
        elif isinstance(node, ast.AnnAssign):
            value, annotation = node.value, ast.unparse(node.annotation)
        else:
            continue
        if not is_mutable(value) or (isinstance(node, ast.Assign) and targets_dunder(node)):
            continue
        if is_empty(value) or not re.match(r"(typing\.)?(Final|Mapping|Sequence|Set|Collection)\b", annotation):
            yield f"line {node.lineno}: mutable state in a module: {ast.unparse(node)[:60]}"


def is_mutable(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name | ast.Attribute):
        return (value.func.id if isinstance(value.func, ast.Name) else value.func.attr) in MUTABLE_CALLS
    return isinstance(value, ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp)


def is_empty(value: ast.expr | None) -> bool:
    match value:
        case ast.Dict(keys=[]) | ast.List(elts=[]) | ast.Call(args=[], keywords=[]):
            return True
        case _:
            return False


def targets_dunder(node: ast.Assign) -> bool:
    return all(isinstance(target, ast.Name) and target.id.startswith("__") for target in node.targets)


def asserts_something(source: Source) -> Iterator[str]:
    if not source.path.startswith("tests/"):
        return
    for node in functions(source.tree):
        if not node.name.startswith("test_"):
            continue
        if not any(isinstance(inner, ast.Assert | ast.With | ast.Raise | ast.Call) for inner in ast.walk(node)):
            yield f"line {node.lineno}: {node.name} checks nothing"


RULES: tuple[Rule, ...] = (
    opens_with_what_it_owns,
    stays_short,
    has_short_functions,
    leaves_nothing_for_later,
    has_a_noun_for_a_name,
    prints_only_in_the_command_line,
    keeps_no_state_in_modules,
    asserts_something,
)


@functools.cache
def sources() -> list[Source]:
    paths = [path for folder in ("src", "tests", "bench", "examples") for path in sorted((ROOT / folder).rglob("*.py"))]
    return [Source(path.relative_to(ROOT).as_posix(), path.read_text()) for path in paths]


@functools.cache
def complaints() -> dict[Rule, list[str]]:
    """By rule; a file is parsed once, and all rules look at it."""
    found: dict[Rule, list[str]] = {rule: [] for rule in RULES}
    for source in sources():
        for rule in RULES:
            found[rule] += [f"{source.path}: {complaint}" for complaint in rule(source)]
    return found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_file(rule: Rule) -> None:
    found = complaints()[rule]
    assert not found, "\n" + "\n".join(found)


def test_the_rules_look_at_real_files() -> None:
    paths = {source.path for source in sources()}
    assert {"src/topics/__init__.py", "tests/test_tidy.py"} <= paths


GOOD = '"""Group commit: many appends, one write."""\n'


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (opens_with_what_it_owns, "src/topics/a.py", ""),
        (opens_with_what_it_owns, "src/topics/a.py", "import os\n"),
        (opens_with_what_it_owns, "src/topics/a.py", '"""The committer module."""\n'),
        (opens_with_what_it_owns, "src/topics/a.py", '"""Committer."""\n'),
        (stays_short, "src/topics/a.py", GOOD + "x = 1\n" * FILE_LINES_MAX),
        (has_short_functions, "tests/a.py", GOOD + "def f():\n" + "    x = 1\n" * FUNCTION_LINES_MAX),
        (leaves_nothing_for_later, "bench/a.py", GOOD + "# TO" + "DO: think\n"),
        (has_a_noun_for_a_name, "src/topics/utils.py", GOOD),
        (has_a_noun_for_a_name, "src/topics/common/disk.py", GOOD),
        (has_a_noun_for_a_name, "src/topics/wal_helpers.py", GOOD),
        (prints_only_in_the_command_line, "src/topics/engine/a.py", GOOD + "def f():\n    print(1)\n"),
        (keeps_no_state_in_modules, "src/topics/a.py", GOOD + "cache = {}\n"),
        (keeps_no_state_in_modules, "src/topics/a.py", GOOD + "cache: Final = {}\n"),
        (keeps_no_state_in_modules, "src/topics/a.py", GOOD + "cache: dict[str, int] = {'a': 1}\n"),
        (keeps_no_state_in_modules, "src/topics/a.py", GOOD + "cache = collections.defaultdict(list)\n"),
        (asserts_something, "tests/test_a.py", GOOD + "def test_a():\n    x = 1\n"),
    ],
)
def test_a_rule_finds_what_breaks_it(rule: Rule, path: str, text: str) -> None:
    assert list(rule(Source(path, text)))


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (opens_with_what_it_owns, "bench/a.py", "#!/usr/bin/env python3\n" + GOOD),
        (stays_short, "tests/a.py", GOOD + "x = 1\n" * FILE_LINES_MAX),
        (prints_only_in_the_command_line, "src/topics/cli/a.py", GOOD + "print(1)\n"),
        (keeps_no_state_in_modules, "src/topics/a.py", GOOD + "__all__ = ['a']\n"),
        (keeps_no_state_in_modules, "src/topics/a.py", GOOD + "STATUS: Final = {'a': 1}\n"),
        (keeps_no_state_in_modules, "src/topics/a.py", GOOD + "STATUS: Mapping[str, int] = {'a': 1}\n"),
    ],
)
def test_a_rule_lets_pass_what_is_fine(rule: Rule, path: str, text: str) -> None:
    assert not list(rule(Source(path, text)))


# Modules that mean the same in each feature, and things that have a module in two layers, or an alias.
SAME_IN_EACH_FEATURE = {"__init__.py", "feature.py", "fold.py", "ops.py", "part.py", "verbs.py"}
IN_TWO_LAYERS = {"backup.py", "errors.py", "multi_append.py", "scan.py"}
BELOW_THE_API = ("engine", "storage", "model")


def test_a_class_name_stands_for_one_thing_below_the_api() -> None:
    owners: dict[str, list[str]] = {}
    for path in (path for layer in BELOW_THE_API for path in (ROOT / "src/topics" / layer).rglob("*.py")):
        for node in parsed(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                owners.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert len(owners) > 200
    assert {name: paths for name, paths in owners.items() if len(paths) > 1} == {}


def test_no_two_modules_below_the_api_share_a_name() -> None:
    owners: dict[str, list[str]] = {}
    for path in (path for layer in BELOW_THE_API for path in (ROOT / "src/topics" / layer).rglob("*.py")):
        owners.setdefault(path.name, []).append(str(path.relative_to(ROOT)))
    shared = {name: paths for name, paths in owners.items() if len(paths) > 1}
    assert shared.keys() - SAME_IN_EACH_FEATURE - IN_TWO_LAYERS == set()


MODULES_MAX = 16


def test_a_package_is_small_enough_to_be_read_at_a_glance() -> None:
    counts: dict[str, int] = {}
    for path in (ROOT / "src").rglob("*.py"):
        package = str(path.parent.relative_to(ROOT))
        counts[package] = counts.get(package, 0) + (path.name != "__init__.py")
    assert len(counts) > 30
    assert {package: count for package, count in counts.items() if count > MODULES_MAX} == {}
