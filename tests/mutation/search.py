"""Mutants in place of tests: a plugin of pytest that forks for each, where everything is imported and collected."""

from __future__ import annotations

import ast
import functools
import gc
import inspect
import itertools
import os
import pickle
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from tests.mutation.changed_module import SOURCE, Changed, path_of
from tests.mutation.forks import Child, Usual, forked
from tests.mutation.small_faults import Mutant

# Of the tests that reach a module at all.
TESTS_OF_IMPORT_MAX = 200
PYTEST_OPTIONS = ["-qq", "-s", "-p", "no:cacheprovider", "-m", "not slow and not crash"]


class Trial(NamedTuple):
    """One mutant of a module."""

    module: str
    mutant: Mutant
    source: bytes

    def __str__(self) -> str:
        where = f"{self.module}:{self.mutant.line} {self.mutant.what}"
        return f"{where}\n    line = {self.line!r}\n    becomes = {self.becomes!r}"

    @property
    def line(self) -> str:
        return self._line_of(self.source)

    @property
    def becomes(self) -> str:
        """Its line, or the first of what replaces it."""
        return self._line_of(self.changed)

    def _line_of(self, source: bytes) -> str:
        return source.decode().splitlines()[self.mutant.line - 1].strip()

    @property
    def changed(self) -> bytes:
        return self.mutant.applied(self.source)


class Reached(NamedTuple):
    """By one run of all tests: which of them pass, how long each takes, and what each reaches."""

    seconds: dict[str, float]
    # By path and line.
    tests: dict[str, dict[int, list[str]]]

    def by_statement(self, trial: Trial) -> list[str]:
        """Tests that reach the statement, quick ones first."""
        return self._by_lines(trial, statement_around(trial))

    def by_module(self, trial: Trial) -> list[str]:
        return self._by_lines(trial, self.tests[str(path_of(trial.module))])

    def _by_lines(self, trial: Trial, lines: Iterable[int]) -> list[str]:
        reached = self.tests[str(path_of(trial.module))]
        found = {name for line in lines for name in reached.get(line, ())}
        return sorted(found & self.seconds.keys(), key=self.seconds.__getitem__)

    def usual(self, tests: Iterable[str]) -> Usual:
        seconds = [self.seconds[name] for name in tests]
        return Usual(sum(seconds), max(seconds, default=0.0))


class Verdict(NamedTuple):
    """Of one mutant; None: it changes something while its module is imported, and these tests may notice it."""

    trial: int
    noticed: bool | None
    tests: Sequence[str] = ()
    usual: Usual = Usual(0.0, 0.0)


class Search:
    """A plugin of pytest that runs mutants in place of the tests."""

    def __init__(self, trials: Sequence[Trial], jobs: int, tell: Callable[[Verdict], None]) -> None:
        self._trials = trials
        self._jobs = jobs
        self._tell = tell
        self._running: dict[Child, int] = {}
        self._number = 0

    def pytest_runtestloop(self, session: Any) -> bool:
        gc.unfreeze()
        find_functions()
        # No fork looks for garbage among what is there, which would copy all of it.
        gc.freeze()
        reached = self._reached(session)
        items = {item.nodeid: item for item in session.items}
        for place, trial in enumerate(self._trials):
            functions = functions_to_change(trial)
            if functions is None:
                tests = reached.by_module(trial)[:TESTS_OF_IMPORT_MAX]
                self._tell(Verdict(place, None, tests, reached.usual(tests)))
                continue
            tests = reached.by_statement(trial)
            chosen = [items[name] for name in tests]
            if not chosen:
                self._tell(Verdict(place, False))
                continue
            self._wait(self._jobs - 1)
            run = functools.partial(run_changed, chosen, functions)
            child = self._fork(session, run, reached.usual(tests))
            self._running[child] = place
        self._wait(0)
        return True

    def _wait(self, running_max: int) -> None:
        while len(self._running) > running_max:
            for child in [*self._running]:
                if (result := child.result) is not None:
                    self._tell(Verdict(self._running.pop(child), result != 0))
            time.sleep(0.01)

    def _fork(self, session: Any, run: Callable[[], int], usual: Usual) -> Child:
        """With a directory of its own for tests."""
        self._number += 1
        directory = session.config._tmp_path_factory.getbasetemp() / f"mutant{self._number}"
        shutil.rmtree(directory.with_name(f"mutant{self._number - 4 * self._jobs}"), ignore_errors=True)

        def inside() -> int:
            session.config._tmp_path_factory._basetemp = directory
            directory.mkdir()
            return run()

        return forked(inside, usual)

    def _reached(self, session: Any) -> Reached:
        file = session.config._tmp_path_factory.getbasetemp() / "reached"
        child = os.fork()
        if not child:
            file.write_bytes(pickle.dumps(run_and_watch(session.items, {trial.module for trial in self._trials})))
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, "the tests do not run"
        return pickle.loads(file.read_bytes())


def run_and_watch(items: Sequence[Any], modules: Iterable[str]) -> Reached:
    import coverage
    from _pytest.runner import runtestprotocol

    paths = [str(path_of(module)) for module in modules]
    watch = coverage.Coverage(data_file=None, include=paths, config_file=False, messages=False)
    seconds: dict[str, float] = {}
    watch.start()
    for item, following in itertools.zip_longest(items, items[1:]):
        watch.switch_context(item.nodeid)
        began_s = time.perf_counter()
        reports = runtestprotocol(item, nextitem=following, log=False)
        if all(report.passed for report in reports):
            seconds[item.nodeid] = time.perf_counter() - began_s
        elif any(report.failed for report in reports):
            print(f"{item.nodeid} fails without any change, and is left out", flush=True)
    watch.stop()
    data = watch.get_data()
    return Reached(seconds, {path: data.contexts_by_lineno(path) for path in paths})


def statement_around(trial: Trial) -> range:
    """The lines of the smallest statement that has the mutant; of one with a body, those before it."""
    best = range(trial.mutant.line, trial.mutant.line + 1)
    for node in ast.walk(ast.parse(trial.source)):
        if isinstance(node, ast.stmt) and node.end_lineno is not None:
            inner = getattr(node, "body", None)
            stop = inner[0].lineno if inner else node.end_lineno + 1
            if node.lineno <= trial.mutant.line < stop:
                best = range(node.lineno, max(stop, node.lineno + 1))
    return best


def functions_to_change(trial: Trial) -> list[tuple[FunctionType, CodeType]] | None:
    """Functions that exist, and their changed code. None if something else changes than functions."""
    path = str(path_of(trial.module))
    before, after = (compile(source, path, "exec") for source in (trial.source, trial.changed))
    changed: dict[tuple[str, int], CodeType] = {}
    for one, other in pairs(before, after):
        if other is None:
            return None
        if one.co_flags & inspect.CO_OPTIMIZED:
            changed[one.co_qualname, one.co_firstlineno] = other
        elif what_it_does(one) != what_it_does(other):
            return None
    found: list[tuple[FunctionType, CodeType]] = []
    for function in _functions[path]:
        code = function.__code__
        other = changed.get((code.co_qualname, code.co_firstlineno))
        if other is None or other.co_freevars != code.co_freevars:
            return None
        found.append((function, other))
    return found


def pairs(before: CodeType, after: CodeType) -> Iterator[tuple[CodeType, CodeType | None]]:
    yield before, after
    inner = [[one for one in code.co_consts if isinstance(one, CodeType)] for code in (before, after)]
    for one, other in itertools.zip_longest(*inner):
        if one is None or other is None:
            yield one or before, None
        else:
            yield from pairs(one, other)


def what_it_does(code: CodeType) -> tuple[object, ...]:
    constants = [repr(one) for one in code.co_consts if not isinstance(one, CodeType)]
    return code.co_code, constants, code.co_names


_functions: dict[str, list[FunctionType]] = defaultdict(list)


def find_functions() -> None:
    for found in gc.get_objects():
        if type(found) is FunctionType and found.__code__.co_filename.startswith(str(SOURCE)):
            _functions[found.__code__.co_filename].append(found)


def run_changed(items: Sequence[Any], functions: Sequence[tuple[FunctionType, CodeType]]) -> int:
    from _pytest.runner import runtestprotocol

    for function, code in functions:
        function.__code__ = code
    for item, following in itertools.zip_longest(items, items[1:]):
        if not all(report.passed for report in runtestprotocol(item, nextitem=following, log=False)):
            return 1
    return 0


def run_with(trial: Trial, tests: Sequence[str]) -> int:
    """The tests, with the changed module imported."""
    sys.meta_path.insert(0, Changed(trial.module, trial.changed))
    import pytest

    return int(pytest.main(["-x", *PYTEST_OPTIONS, *tests]))
