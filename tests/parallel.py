"""`--processes N`: tests are collected once, and forks of that process run them; a file stays with one of them.

    collected ─ fork ─▶ process 1 ── asks for a file, runs its tests, sends their reports ──▶ reported as if run here
              ─ fork ─▶ process 2 ── …

Collecting takes five seconds of processor time, and every worker of pytest-xdist would do it again. A fork has
everything imported, starts at once, and shares the memory.
"""

from __future__ import annotations

import atexit
import os
import random
import sys
import traceback
import warnings
from collections.abc import Sequence
from itertools import groupby
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

import pytest

ENDED, CRASHED = 0, 70


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, default=0, help="run the tests in this many processes, a file in one")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    processes = session.config.option.processes
    if not processes or session.testsfailed or session.config.option.collectonly:
        return None
    reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    reporter.showfspath = False  # tests of several files come mixed
    Run(session).run(processes)
    return True


class Run:
    """The files that no process has yet, and the processes."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        places = range(len(session.items))
        self._left = [list(file) for _, file in groupby(places, key=lambda place: session.items[place].path)]
        self._workers: dict[Connection, Worker] = {}
        self._started = 0

    def run(self, processes: int) -> None:
        session = self._session
        try:
            for _ in range(min(processes, len(self._left))):
                self._start(self._left.pop(0))
            while self._workers:
                for connection in wait(list(self._workers)):
                    assert isinstance(connection, Connection)
                    self._serve(connection)
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)
        finally:
            for connection, worker in self._workers.items():
                connection.close()
                worker.wait()

    def _start(self, file: list[int]) -> None:
        self._started += 1
        ours, theirs = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            # An end that stayed open here would keep another process from seeing that it was left alone.
            for connection in (ours, *self._workers):
                connection.close()
            Child(self._session, theirs, self._started).run(file)
        theirs.close()
        self._workers[ours] = Worker(pid, file)

    def _serve(self, connection: Connection) -> None:
        worker, hook = self._workers[connection], self._session.config.hook
        kind, told = _received(connection)
        if kind == "gone":
            connection.close()
            del self._workers[connection]
            self._replace(worker)
        elif kind == "begins":
            worker.running = told
        elif kind == "warning":
            hook.pytest_warning_recorded.call_historic(kwargs=told)
        elif kind == "report":
            report = hook.pytest_report_from_serializable(config=self._session.config, data=told)
            hook.pytest_runtest_logreport(report=report)
        else:
            worker.file = self._left.pop(0) if self._left else []
            worker.running = None
            connection.send(worker.file)

    def _replace(self, worker: Worker) -> None:
        """Whoever got an empty file ended. Of another one, the test that it ran has failed; a new one does the rest."""
        code = worker.wait()
        if worker.running is None:
            if code != ENDED:
                raise RuntimeError(f"a process of tests ended with exit code {code} between two files")
            return
        lost = self._session.items[worker.running]
        why = f"the process that ran this test ended with exit code {code}"
        report = pytest.TestReport(lost.nodeid, lost.location, {}, "failed", why, "call")
        self._session.config.hook.pytest_runtest_logreport(report=report)
        rest = worker.file[worker.file.index(worker.running) + 1 :]
        if rest:
            self._start(rest)


def _received(connection: Connection) -> tuple[str, Any]:
    try:
        return connection.recv()
    except (EOFError, ConnectionResetError):
        return "gone", None


class Worker:
    """A process, and what it does: places of tests among the collected ones."""

    def __init__(self, pid: int, file: list[int]) -> None:
        self.file = file
        self.running: int | None = None
        self._pid = pid

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


# --- in a process of tests ---


class Child:
    """A plugin in place of the one that prints: it sends what would be printed."""

    def __init__(self, session: pytest.Session, connection: Connection, number: int) -> None:
        self._session = session
        self._connection = connection
        self._number = number

    def run(self, file: list[int]) -> NoReturn:
        code = CRASHED
        try:
            self._prepare()
            self._run_files(file)
            code = ENDED
        except (EOFError, BrokenPipeError, KeyboardInterrupt):
            pass  # nobody wants to know any more
        except BaseException:  # noqa: BLE001 - a fork must not go on where its parent was
            self._capture.stop_global_capturing()
            traceback.print_exc()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    @property
    def _capture(self) -> Any:
        return self._session.config.pluginmanager.get_plugin("capturemanager")

    def _prepare(self) -> None:
        """What two processes must not share: files of captured output, directories, chance."""
        config: Any = self._session.config
        self._capture.stop_global_capturing()
        self._capture.start_global_capturing()
        directories = config._tmp_path_factory
        atexit.unregister(directories._exit_stack.close)
        directories._basetemp = directories.getbasetemp() / f"process{self._number}"
        directories._basetemp.mkdir(mode=0o700)
        random.seed()
        config.pluginmanager.unregister(name="terminalreporter")
        config.pluginmanager.register(self)

    def _run_files(self, file: Sequence[int]) -> None:
        session, last = self._session, None
        try:
            while file:
                for place, following in zip(file, [*file[1:], None], strict=True):
                    self._connection.send(("begins", place))
                    last = session.items[place]
                    # After the last test of a file, what the session shares stays; the file itself is left.
                    then: Any = session if following is None else session.items[following]
                    session.config.hook.pytest_runtest_protocol(item=last, nextitem=then)
                    if session.shouldfail or session.shouldstop:
                        return
                self._connection.send(("done", None))
                file = self._connection.recv()
        finally:
            self._leave(last)

    def _leave(self, last: pytest.Item | None) -> None:
        """End what the session shares: a failure is one of the last test, as it is without processes."""
        state: Any = self._session._setupstate
        call = pytest.CallInfo.from_call(lambda: state.teardown_exact(None), when="teardown")
        if call.excinfo is not None and last is not None:
            hook = self._session.config.hook
            hook.pytest_runtest_logreport(report=hook.pytest_runtest_makereport(item=last, call=call))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        config = self._session.config
        data = config.hook.pytest_report_to_serializable(config=config, report=report)
        self._connection.send(("report", data))

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage, when: str, nodeid: str) -> None:
        where = (warning_message.filename, warning_message.lineno)
        plain = warnings.WarningMessage(str(warning_message.message), Warning, *where)
        self._connection.send(("warning", {"warning_message": plain, "when": when, "nodeid": nodeid, "location": None}))
