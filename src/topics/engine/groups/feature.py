"""Consumer groups as a feature of the state: their part of a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw

from topics.engine.core.checkpoints.image import EMPTY
from topics.engine.core.feature import Feature
from topics.engine.groups import group
from topics.engine.groups.part import GroupsPart, groups_of

if TYPE_CHECKING:
    from topics.engine.core.checkpoints.image import TopicImage
    from topics.engine.core.state import State
    from topics.engine.log.block import Block
    from topics.engine.log.topic import Topic

_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(list[group.GroupImage])


class GroupsFeature(Feature):
    def __init__(self, state: State) -> None:
        self._state = state

    def encode(self, topic: Topic, image: TopicImage, images_of: Callable[[Iterable[Block]], bytes]) -> None:
        if topic.groups is not None:
            image.groups = Raw(_encode(group.picture(groups_of(topic))))

    def decode(self, topic: Topic, image: TopicImage) -> None:
        if image.groups != EMPTY:
            topic.groups = GroupsPart(group.restore(_decoder.decode(image.groups)))
