"""The engine inside a Python program: a typed, thread-safe, synchronous database of topics."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
from msgspec import UNSET

from topics.embedded.values import Appended, Diff, Outgoing, Record, readable, record_wish
from topics.engine.cold import ColdMiss
from topics.engine.engine import PAGE_SIZE_MAX
from topics.engine.listing import Page, TopicState
from topics.engine.retention import Tombstone
from topics.engine.routers import RouterState
from topics.engine.staged import Busy, Staged
from topics.engine.store import Store
from topics.engine.topic import Topic
from topics.model.clock import Clock
from topics.model.config import ConfigWish, TopicConfig
from topics.model.errors import InvalidRequest, ShuttingDown, StorageError
from topics.model.mistakes import mistake
from topics.model.routing import RouterConfig, RouterWish
from topics.model.settings import Settings
from topics.model.wishes import AppendWish, DeleteWish, DiffWish

T = TypeVar("T")

HOUSEKEEPING_S = 0.05
log = logging.getLogger("topics.embedded")


def _ignore(progress: float) -> None:
    """Nobody asked how far opening is."""


class Database:
    """Open with `topics.open`. Every method may be called from any thread; all see one order of events."""

    def __init__(
        self,
        path: str,
        settings: Settings | None = None,
        *,
        clock: Clock | None = None,
        on_progress: Callable[[float], None] = _ignore,
    ) -> None:
        self._lock = threading.Lock()
        self._moved = threading.Condition(self._lock)
        self._news = threading.Event()
        self._closed = False
        self._failure: Exception | None = None
        self._store = Store(path, settings, clock=clock, notify=self._news.set)
        for progress in self._store.opening():
            on_progress(progress)
        self._engine = self._store.engine
        self._housekeeper = threading.Thread(target=self._keep_house, name="topics-housekeeping", daemon=True)
        self._housekeeper.start()

    # --- records ---

    def append(
        self,
        topic: str,
        data: Any,
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        create: bool | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> Appended:
        """Append one record; it is as durable as the topic's class promises when this returns."""
        record = Outgoing(data, tag, node, meta)
        return self.append_many(topic, (record,), idempotency_key=idempotency_key, create=create, config=config)

    def append_many(
        self,
        topic: str,
        records: Iterable[Any],
        *,
        node: str | None = None,
        idempotency_key: str | None = None,
        create: bool | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> Appended:
        """Append a batch, all of it or nothing. An item is the data itself, or an `Outgoing`."""
        wish = AppendWish(
            records=[record_wish(record) for record in records],
            node=node,
            idempotency_key=idempotency_key,
            create=create,
            config=None if config is None else _config_wish(config),
        )
        return self.append_wish(topic, wish)

    def append_wish(self, topic: str, wish: AppendWish) -> Appended:
        """Append what `topics.model.wishes.append_decoder` made of a request's bytes."""
        staged = self._commit(lambda: self._engine.append(topic, wish))
        return Appended(
            staged.first_seq,
            staged.last_seq,
            staged.head_seq,
            staged.created,
            staged.deduped,
            staged.wal_append_ms,
            staged.fsync_ms,
        )

    def diff(
        self,
        topic: str,
        from_seq: int = 0,
        *,
        limit: int = 0,
        node: str | list[str] | None = None,
        include_tags: bool = False,
        include_meta: bool = True,
        max_batch_bytes: int = 0,
        from_ts: int | None = None,
    ) -> Diff:
        """Records behind a cursor; pass `next_from_seq` back to go on."""
        wish = DiffWish(
            from_seq=_natural(from_seq, "from_seq"),
            limit=_natural(limit, "limit"),
            node=node,
            include_tags=include_tags,
            include_meta=include_meta,
            max_batch_bytes=_natural(max_batch_bytes, "max_batch_bytes"),
            from_ts=UNSET if from_ts is None else _natural(from_ts, "from_ts"),
        )
        return readable(self._look(lambda: self._engine.diff(topic, wish)))

    def tail(
        self,
        topic: str,
        from_seq: int | None = None,
        *,
        node: str | list[str] | None = None,
        include_tags: bool = False,
        idle_s: float | None = None,
    ) -> Iterator[Record | Tombstone]:
        """Records as they come, from behind `from_seq` or from now on; what was lost on the way is a Tombstone.

        Ends when nothing came for `idle_s` seconds (None: never), or when the database is closed.
        """
        state = self.state(topic, touch=False)
        cursor, epoch = state.head_seq if from_seq is None else _natural(from_seq, "from_seq"), state.epoch
        wish = DiffWish(from_seq=cursor, limit=self._store.settings.max_limit, node=node, include_tags=include_tags)
        while True:
            diff = self._look_or_wait(topic, epoch, wish, idle_s)
            if diff is None:
                return
            if diff.epoch != epoch:
                # Another topic of this name: nothing that the cursor says holds for it.
                epoch, wish.from_seq = diff.epoch, 0
                yield Tombstone(1, diff.head_seq, "recreated", diff.head_seq, diff.earliest_seq, diff.head_seq)
                continue
            if diff.tombstone is not None:
                yield diff.tombstone
            yield from diff.records
            wish.from_seq = diff.next_from_seq

    def delete(self, topic: str, *, before_seq: int | None = None, match: str | list[str] | None = None) -> int:
        """Remove records below a seq and/or by tag, those that exist now; how many there were."""
        wish = DeleteWish(
            before_seq=UNSET if before_seq is None else _natural(before_seq, "before_seq"),
            match=match,
        )
        staged = self._commit_reading(lambda: self._engine.delete(topic, wish))
        return staged.result[0]

    # --- topics ---

    def configure(self, topic: str, **config: Any) -> TopicConfig:
        """Create the topic, or replace its configuration; fields left out take their defaults."""
        wish = _config_wish(config)
        return self._commit(lambda: self._engine.configure(topic, wish)).result

    def drop(self, topic: str, *, if_empty: bool = False) -> bool:
        """Remove the topic and everything in it; whether there was one."""
        return bool(self._commit(lambda: self._engine.drop(topic, if_empty=if_empty)).result)

    def state(self, topic: str, *, touch: bool = True) -> TopicState:
        return self._look(lambda: self._engine.look(topic, touch=touch))

    def topics(self, prefix: str = "") -> Iterator[TopicState]:
        """All topics whose name starts with `prefix`, by name."""
        cursor: str | None = None
        while True:
            page = self._page(prefix, cursor)
            yield from page.topics
            cursor = page.next_cursor
            if cursor is None:
                return

    def _page(self, prefix: str, cursor: str | None) -> Page:
        return self._look(lambda: self._engine.list(prefix, cursor, PAGE_SIZE_MAX))

    # --- routers ---

    def route(self, router: str, source: str, dest: str, **fields: Any) -> RouterConfig:
        """Have every record of `source` copied to `dest` from now on; fields as in `PUT /v0/routers/:router`."""
        try:
            wish = msgspec.convert({"source": source, "dest": dest, **fields}, RouterWish)
        except msgspec.ValidationError as error:
            raise mistake(error, RouterWish) from None
        return self._commit(lambda: self._store.routers.put(router, wish)).result

    def unroute(self, router: str) -> bool:
        """Stop forwarding; what was copied stays. Whether there was such a router."""
        return bool(self._commit(lambda: self._store.routers.drop(router)).result)

    def router(self, router: str) -> RouterState:
        return self._look(lambda: self._store.routers.look(router))

    # --- the database ---

    def checkpoint(self) -> bool:
        """Pack everything and trim the log now, instead of when it is due; whether it worked."""
        with self._lock:
            self._check_open()
            return self._store.checkpoint()

    def backup(self, path: str) -> int:
        """Copy all that is there now into a new file, while everything goes on; its length.

        The file appears when it is whole. `topics restore` makes a directory of it.
        """
        from topics import __version__

        with self._lock:
            self._check_open()
            backup = self._store.begin_backup(f"topics {__version__}")
        try:
            with self._lock:
                while not backup.is_synced:
                    self._check_open()
                    if read_only := self._store.pipeline.read_only:
                        raise read_only
                    self._moved.wait()
                for _ in backup.plan():
                    pass
            backup.save(path)
        finally:
            with self._lock:
                backup.release()
        return backup.archive_bytes

    def close(self) -> None:
        """Write everything down and let go of the directory. Opening it again then takes no replay."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._moved.notify_all()
        self._news.set()
        self._housekeeper.join()
        with self._lock:
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- running verbs ---

    def _look(self, verb: Callable[[], T]) -> T:
        """Run a verb that only reads, fetching from disk what it misses."""
        while True:
            with self._lock:
                self._check_open()
                try:
                    return verb()
                except Busy as busy:
                    self._wait_done(busy.staged)
                    continue
                except ColdMiss as found:
                    miss = found
            self._fetch(miss)

    def _commit(self, verb: Callable[[], Staged]) -> Staged:
        """Run a verb that changes something, and wait until that is as durable as it has to be."""
        staged = self._look(lambda: self._flushed(verb()))
        return self._finished(staged)

    def _commit_reading(self, verb: Callable[[], Generator[ColdMiss | None, None, Staged]]) -> Staged:
        """As `_commit`, for a verb that says what it must read on the way."""
        while True:
            try:
                with self._lock:
                    self._check_open()
                    finding = verb()
                while True:
                    with self._lock:
                        self._check_open()
                        miss = next(finding)
                    if miss is not None:
                        self._fetch(miss)
            except StopIteration as end:
                with self._lock:
                    self._flushed(end.value)
                return self._finished(end.value)
            except Busy as busy:
                with self._lock:
                    self._wait_done(busy.staged)

    def _flushed(self, staged: Staged) -> Staged:
        self._store.pipeline.flush()
        if self._store.forwarder.pending:
            self._news.set()
        return staged

    def _finished(self, staged: Staged) -> Staged:
        if not staged.done:
            with self._lock:
                self._wait_done(staged)
        if staged.error is not None:
            raise staged.error
        return staged

    def _wait_done(self, staged: Staged) -> None:
        self._store.pipeline.flush()
        while not staged.done:
            self._check_open()
            self._moved.wait()

    def _fetch(self, miss: ColdMiss) -> None:
        cold = self._store.state.cold
        found = cold.read(miss)
        with self._lock:
            cold.take(miss, found)

    def _look_or_wait(self, topic: str, epoch: int, wish: DiffWish, idle_s: float | None) -> Diff | None:
        """Something new, or None when there was nothing for so long or the database was closed."""
        while not self._closed:
            diff = self._look(lambda: self._engine.diff(topic, wish))
            if diff.count or diff.tombstone is not None or diff.epoch != epoch:
                return readable(diff)
            wish.from_seq = diff.next_from_seq
            if not diff.caught_up:
                continue
            with self._lock:
                found = self._store.state.by_name.get(topic)
                if found is None or found.epoch != epoch or self._closed:
                    continue
                if not self._wait_behind(found, wish.from_seq, idle_s):
                    return None
        return None

    def _wait_behind(self, topic: Topic, from_seq: int, idle_s: float | None) -> bool:
        """Whether there was something to look at before the time was up."""
        waiter = self._engine.waiters.add(topic, self._moved.notify_all)
        try:
            return self._moved.wait_for(lambda: self._closed or self._has_moved(topic, from_seq), idle_s)
        finally:
            self._engine.waiters.remove(waiter)

    def _has_moved(self, topic: Topic, from_seq: int) -> bool:
        """Something came in, or the topic does not exist any more."""
        return topic.head_seq != from_seq or self._store.state.by_id.get(topic.id) is not topic

    def _check_open(self) -> None:
        if self._closed:
            raise ShuttingDown("the database is closed")
        if self._failure is not None:
            raise StorageError(f"the database failed and must be opened again: {self._failure}")

    def _keep_house(self) -> None:
        """Publishes what became durable, forwards, runs checkpoints: a slice at a time, so that nobody waits for it."""
        while not self._closed:
            self._news.wait(HOUSEKEEPING_S)
            self._news.clear()
            with self._lock:
                try:
                    self._store.settle()
                    if self._store.step() | self._store.forwarder.step():
                        self._news.set()
                except Exception as error:
                    log.exception("housekeeping failed; the database takes no more calls")
                    self._failure = error
                self._moved.notify_all()
            if self._failure is not None:
                return


def open(
    path: str,
    settings: Settings | None = None,
    *,
    clock: Clock | None = None,
    on_progress: Callable[[float], None] = _ignore,
) -> Database:
    """Open the database in this directory, making it if there is none.

    After a crash the log is replayed first; `on_progress` is told how far that is (0.0 … 1.0).
    """
    return Database(path, settings, clock=clock, on_progress=on_progress)


def _config_wish(config: Mapping[str, Any]) -> ConfigWish:
    try:
        return msgspec.convert(dict(config), ConfigWish)
    except msgspec.ValidationError as error:
        raise mistake(error, ConfigWish) from None


def _natural(value: int, field: str) -> int:
    if value < 0:
        raise InvalidRequest(f"{field} must not be negative", field=field)
    return value
