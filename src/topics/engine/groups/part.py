"""Consumer groups of one topic, and how far each of them is."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from topics.engine.log.part import TopicPart

if TYPE_CHECKING:
    from topics.engine.groups.group import Group
    from topics.engine.log.topic import Topic

_NONE: Mapping[str, Group] = MappingProxyType({})


class GroupsPart(TopicPart):
    __slots__ = ("by_name",)

    def __init__(self, by_name: dict[str, Group]) -> None:
        self.by_name = by_name


def groups_of(topic: Topic) -> Mapping[str, Group]:
    """The groups that have read the topic, by name."""
    part = topic.groups
    return part.by_name if isinstance(part, GroupsPart) else _NONE
