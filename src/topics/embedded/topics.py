"""Topics: create, change, look, list, drop, and delete records from one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, Literal, Unpack

from topics.client.values import Change, Configured, Edited, TopicFields, TopicItem
from topics.embedded.host import Host
from topics.embedded.requests import converted, request_of, warn
from topics.engine.core.configuration import Edit
from topics.engine.core.listing import PAGE_SIZE_MAX, Page, TopicState
from topics.engine.core.topic_search import TopicQuery, order_of, search
from topics.engine.core.waiting.runner import Steps
from topics.model.names import TopicOrder
from topics.model.requests.config import ConfigPatch, ConfigRequest, TopicConfig
from topics.model.requests.records import DeleteRequest
from topics.model.requests.warnings import config_warnings, match_warnings

PAGE_SIZE: Final = 1_000


class Topics:
    _host: Host

    def create(self, name: str, *, replace: bool = False, **config: Unpack[TopicFields]) -> Configured:
        """Create a topic, or confirm that it is configured like this; absent fields have their defaults.

        For a topic with another configuration it raises TopicExistsIncompatible, which shows the difference. `replace`
        gives it this configuration instead, and `edit` changes single fields.
        """
        request = converted(ConfigRequest, {**config})
        verbs = self._host.engine.configuration
        change = self._host.commit(lambda: verbs.put(name, request, replace=replace))
        warnings = config_warnings(change.result, request)
        warn(warnings)
        return Configured(topic=name, created=change.created, config=change.result, warnings=warnings)

    def configure(self, name: str, **config: Any) -> TopicConfig:
        """Create the topic, or replace its configuration; absent fields have their defaults."""
        request = converted(ConfigRequest, config)
        return self._host.commit(lambda: self._host.engine.configure(name, request)).result

    def edit(self, name: str, *, dry_run: bool = False, **config: Unpack[TopicFields]) -> Edited:
        """Change the given fields of a topic's configuration. A dry run only reports changes and evictions."""
        patch = converted(ConfigPatch, {**config})
        verbs = self._host.engine.configuration
        edit: Edit = self._host.commit(lambda: verbs.edit(name, patch, dry_run=dry_run)).result
        warnings = config_warnings(edit.config, patch)
        warn(warnings)
        return Edited(
            topic=name,
            config=edit.config,
            changes={field: Change(before=change.old, after=change.new) for field, change in edit.changes.items()},
            evicts=edit.evicts,
            dry_run=dry_run,
            warnings=warnings,
        )

    def state(self, name: str, *, touch: bool = True) -> TopicState:
        """The state of a topic. It counts as a read for the topic's priority unless `touch` is false."""
        return self._host.look(lambda: self._host.engine.look(name, touch=touch))

    def drop(self, name: str, *, if_empty: bool = False, dry_run: bool = False) -> bool:
        """Remove a topic with all it has, and its routers. False: there was none. A dry run removes nothing."""
        drop = partial(self._host.engine.drop, name, if_empty=if_empty, dry_run=dry_run)
        return bool(self._host.commit(drop).result)

    def delete(
        self,
        name: str,
        before_seq: int | None = None,
        match: str | tuple[str, str, str] | list[str] | None = None,
        *,
        dry_run: bool = False,
    ) -> int:
        """Delete records below a seq, or whose tag matches (`"x"`, `("tag", "Glob", "x*")`), or both; how many.

        A dry run only counts them.
        """
        request = request_of(DeleteRequest, before_seq=before_seq, match=match, dry_run=dry_run)
        change = self._host.finished(self._host.run(self._host.engine.delete(name, request)))
        warn(match_warnings(request.match, "match"))
        return change.result[0]

    def list(
        self,
        prefix: str = "",
        *,
        contains: str = "",
        type: Literal["log", "queue"] | None = None,
        sort: TopicOrder = "name",
        page_size: int = PAGE_SIZE,
    ) -> Iterator[TopicItem]:
        """Topics whose name starts with `prefix` and contains `contains`, in any case of letters; of one type.

        They are sorted by name, or by records, bytes or last write; with a minus, the most or the latest first.
        """
        query, order = TopicQuery(prefix, contains.lower(), type, ("",)), order_of(sort)
        query.check()
        for state in self._pages(lambda cursor: self._host.run(self._found(query, order, cursor, page_size))):
            yield TopicItem(
                topic=state.topic,
                type=state.type,
                head_seq=state.head_seq,
                earliest_seq=state.earliest_seq,
                count=state.count,
                bytes=state.bytes,
                durable=state.config.durable,
                effective_priority=state.effective_priority,
                epoch=state.epoch,
            )

    def topics(self, prefix: str = "") -> Iterator[TopicState]:
        """Like `list`, with everything that `state` shows."""
        engine = self._host.engine
        return self._pages(lambda cursor: self._host.look(lambda: engine.list(prefix, cursor, PAGE_SIZE_MAX)))

    def _found(self, query: TopicQuery, order: TopicOrder, cursor: str | None, page_size: int) -> Steps[Page]:
        engine = self._host.engine
        page_size = max(1, min(PAGE_SIZE_MAX, page_size))
        topics, next_cursor = yield from search(engine.state, query, order, cursor, page_size)
        return Page([engine.describe(topic) for topic in topics], next_cursor)

    def _pages(self, page_after: Callable[[str | None], Page]) -> Iterator[TopicState]:
        cursor: str | None = None
        while True:
            page = page_after(cursor)
            yield from page.topics
            cursor = page.next_cursor
            if cursor is None:
                return
