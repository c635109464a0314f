"""The server itself: who asks and what they may do, its settings and files, its log, and its past hour."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from topics.api.auth import Authenticator, KeyAuthenticator, Principal, Scope
from topics.api.call import Call
from topics.api.console import queue_history
from topics.api.console.history import SERIES, STEP_MS, History
from topics.api.console.recent_log import LogLine, RecentLog
from topics.api.lifecycle import VERSION, Lifecycle
from topics.api.metrics import disk_bytes, memory_bytes
from topics.api.replies import encode, performance
from topics.api.routes import QueryField, Route
from topics.api.schema import Performance
from topics.engine.core.waiting.runner import Signal, Steps, attempt
from topics.model.errors import Forbidden
from topics.model.settings import DEFAULT, TABLE, Settings

if TYPE_CHECKING:
    from topics.engine.opening.store import Store
    from topics.storage.worker import WorkerJob

LOG_LINES_DEFAULT = 100


class MeReply(msgspec.Struct):
    """`key` is the number of the key in the settings; null on a server without keys."""

    key: int | None
    scopes: list[str]
    prefixes: list[str]
    console: str
    version: str
    performance: Performance


class KeyItem(msgspec.Struct):
    key: int
    scopes: list[str]
    prefixes: list[str]
    in_flight: int
    streams: int


class SettingItem(msgspec.Struct):
    """`value` is null for a secret, and for what is not set; `origin` says which of both."""

    name: str
    group: str
    value: Any
    origin: str
    secret: bool
    help: str


class FileGroup(msgspec.Struct):
    """Files of one kind."""

    kind: str
    path: str
    files: int
    bytes: int


class ServerReply(msgspec.Struct):
    version: str
    python: str
    uptime_ms: int
    pid: int
    data_dir: str
    memory_bytes: int
    disk_bytes: int
    disk_free_bytes: int
    keys: list[KeyItem]
    settings: list[SettingItem]
    files: list[FileGroup]
    log: list[LogLine]
    performance: Performance


class HistoryReply(msgspec.Struct):
    """Columns of equal length, oldest first: `ts` in ms, and one for each series."""

    step_ms: int
    ts: list[int]
    series: dict[str, list[float]]
    performance: Performance


class QueueHistoryReply(msgspec.Struct):
    """The same of one queue."""

    topic: str
    step_ms: int
    ts: list[int]
    series: dict[str, list[float]]
    performance: Performance


class ServerState:
    def __init__(
        self,
        store: Store,
        settings: Settings,
        origins: Mapping[str, str],
        authenticator: Authenticator,
        lifecycle: Lifecycle,
        history: History,
        recent_log: RecentLog,
    ) -> None:
        self._store = store
        self._settings = settings
        self._origins = origins
        self._authenticator = authenticator
        self._lifecycle = lifecycle
        self._history = history
        self._recent_log = recent_log

    def routes(self) -> list[Route]:
        return [
            Route(
                method="GET",
                path="/v0/me",
                handler=self.me,
                summary="What the caller may do: scopes and name prefixes of the key.",
                replies={200: MeReply},
            ),
            Route(
                method="GET",
                path="/v0/server",
                handler=self.look,
                summary="Settings and where they come from, keys, files, the end of the log. Secrets are left out.",
                scopes=Scope.ADMIN,
                query=(QueryField("log_lines", int, "Lines of the log, 0 to 500.", default=LOG_LINES_DEFAULT),),
                replies={200: ServerReply},
            ),
            Route(
                method="GET",
                path="/v0/history",
                handler=self.past,
                summary="The last hour of the server's own metrics, a point every 5 s.",
                scopes=Scope.ADMIN,
                query=(QueryField("since", int, "Only points after this time, in ms.", default=0),),
                replies={200: HistoryReply},
            ),
            Route(
                method="GET",
                path="/v0/topics/{topic}/history",
                handler=self.past_of_queue,
                summary="The last hour of a queue, a point every 10 s: throughput, failures, waiting.",
                scopes=Scope.READ,
                query=(QueryField("since", int, "Only points after this time, in ms.", default=0),),
                replies={200: QueueHistoryReply},
                errors=("topic_not_found", "not_a_queue"),
            ),
        ]

    def me(self, call: Call) -> None:
        principal = call.principal
        reply = MeReply(
            key=principal.number or None,
            scopes=scope_names(principal),
            prefixes=shown_prefixes(principal),
            console=self._settings.console,
            version=VERSION,
            performance=performance(call),
        )
        call.reply(200, encode(reply))

    def look(self, call: Call) -> Steps[None]:
        check_sees_all(call.principal)
        lines = max(0, call.integer("log_lines", LOG_LINES_DEFAULT))
        files = yield from self._files()
        disk, free = disk_bytes(self._settings.data_dir)
        reply = ServerReply(
            version=VERSION,
            python=sys.version.partition(" ")[0],
            uptime_ms=self._lifecycle.uptime_ms,
            pid=os.getpid(),
            data_dir=os.path.abspath(self._settings.data_dir),
            memory_bytes=memory_bytes(),
            disk_bytes=disk,
            disk_free_bytes=free,
            keys=self._keys(),
            settings=self._shown_settings(),
            files=files,
            log=self._recent_log.last(lines),
            performance=performance(call),
        )
        call.reply(200, encode(reply))

    def _keys(self) -> list[KeyItem]:
        if not isinstance(self._authenticator, KeyAuthenticator):
            return []
        return [
            KeyItem(key.number, scope_names(key), shown_prefixes(key), key.inflight, key.streams)
            for key in self._authenticator.keys
        ]

    def _shown_settings(self) -> list[SettingItem]:
        return [
            SettingItem(
                name=row.name,
                group=row.group,
                value=None if row.secret else getattr(self._settings, row.name),
                origin=self._origins.get(row.name, DEFAULT),
                secret=row.secret,
                help=row.help,
            )
            for row in TABLE
        ]

    def _files(self) -> Steps[list[FileGroup]]:
        """Counted by the worker: a directory may hold many files, and its disk may be slow."""
        paths = self._store.directory.file_paths
        counted = Signal()
        found: list[FileGroup] = []

        def arrived(job: WorkerJob[list[FileGroup]]) -> None:
            found.extend(job.result() if job.error is None else ())
            counted.set()

        self._store.worker.submit(lambda: [count_files(kind, path) for kind, path in paths.items()], arrived)
        yield counted
        return found

    def past(self, call: Call) -> None:
        check_sees_all(call.principal)
        since = call.integer("since", 0)
        rows = [row for row in self._history.rows if row[0] > since]
        columns = list(zip(*rows, strict=True)) or [()] * (1 + len(SERIES))
        reply = HistoryReply(
            step_ms=STEP_MS,
            ts=[int(ts) for ts in columns[0]],
            series={name: list(column) for name, column in zip(SERIES, columns[1:], strict=True)},
            performance=performance(call),
        )
        call.reply(200, encode(reply))

    def past_of_queue(self, call: Call) -> Steps[None]:
        topic, _, _ = yield from attempt(lambda: self._store.queues.find(call.name))
        ts, series = self._history.queues.of(topic).after(call.integer("since", 0))
        reply = QueueHistoryReply(
            topic=topic.name, step_ms=queue_history.STEP_MS, ts=ts, series=series, performance=performance(call)
        )
        call.reply(200, encode(reply))


def scope_names(principal: Principal) -> list[str]:
    return [scope.name.lower() for scope in Scope(principal.scopes) if scope.name]


def shown_prefixes(principal: Principal) -> list[str]:
    """None: every name."""
    return [] if principal.sees_all_names else list(principal.prefixes)


def check_sees_all(principal: Principal) -> None:
    """The server as a whole is the business of keys that may use every name."""
    if not principal.sees_all_names:
        raise Forbidden("only a key without prefixes may look at the server", prefixes=list(principal.prefixes))


def count_files(kind: str, path: str) -> FileGroup:
    group = FileGroup(kind, path, 0, 0)
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    group.files += 1
                    group.bytes += entry.stat(follow_symlinks=False).st_size
    except OSError:
        # A file that went away while it was counted, or a directory that nobody has made yet.
        pass
    return group
