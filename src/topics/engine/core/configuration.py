"""The configuration of topics: create or replace, confirm, and change field by field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import UNSET

from topics.engine.core.ops import Configured
from topics.engine.core.pending import PendingChange, settled
from topics.engine.log.retention import lost_under
from topics.model.clock import Clock
from topics.model.errors import TopicExistsIncompatible, TopicNotFound
from topics.model.requests.config import ConfigPatch, ConfigRequest, TopicConfig, patched, resolve

if TYPE_CHECKING:
    from topics.engine.core.engine import Engine
    from topics.engine.log.topic import Topic


class Change(msgspec.Struct, frozen=True):
    """A field of a configuration: its current value and the requested one."""

    old: Any = msgspec.field(name="from")
    new: Any = msgspec.field(name="to")


class Edit(NamedTuple):
    """The result of a patch; `evicts` is how many records it removes."""

    config: TopicConfig
    changes: dict[str, Change]
    evicts: int


class Configuration:
    """Verbs of the engine, for its owner's thread."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    def put(self, name: str, request: ConfigRequest, *, replace: bool = True) -> PendingChange:
        """Create the topic, or replace its configuration. `result` is the resolved configuration.

        Without `replace` an existing topic keeps its configuration: it is confirmed if that equals the request.
        """
        topic = self._engine.find_to_write(name)
        if topic is None:
            return self._engine.create(name, self._engine.check_class(resolve(request, name)))
        config = self._engine.check_class(resolve(request, name, topic.config))
        _check_type(topic, config)
        if config == topic.config:
            return settled(topic.id, config)
        if not replace:
            raise _differs(name, changes_of(topic.config, config))
        return self._replace(topic, config)

    def edit(self, name: str, patch: ConfigPatch, *, dry_run: bool = False) -> PendingChange:
        """Change the given fields. `result` is the Edit; a dry run ends there."""
        topic = self._engine.find_to_write(name)
        if topic is None:
            raise TopicNotFound(name)
        config = self._engine.check_class(resolve(patched(topic.config, patch), name, topic.config))
        _check_type(topic, config)
        cold = self._engine.state.cold
        self._engine.state.expire(topic, self._clock.now_ms(), cold.load)
        evicts = lost_under(topic, config, self._clock.now_ms(), cold.load) if config != topic.config else 0
        edit = Edit(config, changes_of(topic.config, config), evicts)
        if dry_run or config == topic.config:
            return settled(topic.id, edit)
        change = self._replace(topic, config)
        change.result = edit
        return change

    def _replace(self, topic: Topic, config: TopicConfig) -> PendingChange:
        commit_log = self._engine.commit_log
        commit_log.check_writable()
        self._engine.state.expire(topic, self._clock.now_ms(), self._engine.state.cold.load)
        op = Configured(topic.id, topic.assigned_seq, topic.assigned_seq + topic.chunk, topic.evict_floor, config)
        change = commit_log.submit(op, op.encode(), gated=True)
        change.result = config
        return self._engine.in_flight.hold(change, ("topic", topic.name))


def changes_of(old: TopicConfig, new: TopicConfig) -> dict[str, Change]:
    """The fields that differ. `durable` only repeats `durability`."""
    return {
        field: Change(_shown(getattr(old, field)), _shown(getattr(new, field)))
        for field in TopicConfig.__struct_fields__
        if field != "durable" and getattr(old, field) != getattr(new, field)
    }


def _shown(value: Any) -> Any:
    return None if value is UNSET else msgspec.to_builtins(value)


def _check_type(topic: Topic, config: TopicConfig) -> None:
    if config.type != topic.config.type:
        raise TopicExistsIncompatible(
            f'topic "{topic.name}" is a {topic.config.type}; a topic\'s type cannot change, use another name',
            topic=topic.name,
            field="type",
        )


def _differs(name: str, changes: dict[str, Change]) -> TopicExistsIncompatible:
    said = "; ".join(f"{field} is {_json(change.old)}, not {_json(change.new)}" for field, change in changes.items())
    return TopicExistsIncompatible(
        f'topic "{name}" exists with another configuration: {said}. '
        "A PATCH (edit) changes single fields, a PUT without replace=false (replace=True) replaces all of them",
        topic=name,
        changes=msgspec.to_builtins(changes),
    )


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
