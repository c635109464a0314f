"""Consumer groups as a feature of the state: their part of a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw

from topics.engine.core.checkpoints.image import EMPTY
from topics.engine.core.feature import Feature
from topics.engine.groups.group import NOTHING_YET, Group, GroupClaim
from topics.engine.groups.part import GroupsPart, groups_of
from topics.engine.log.seq_ranges import SeqRange

if TYPE_CHECKING:
    from topics.engine.core.checkpoints.image import TopicImage
    from topics.engine.core.state import State
    from topics.engine.log.block import Block
    from topics.engine.log.topic import Topic


class GroupImage(msgspec.Struct, array_like=True):
    """A group as a snapshot stores it; version 0.1 wrote the first four fields."""

    name: str
    committed: int
    claims: list[GroupClaim]
    acked: list[SeqRange]
    begin_seq: int = NOTHING_YET
    latest_seq: int = NOTHING_YET


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(list[GroupImage])


class GroupsFeature(Feature):
    def __init__(self, state: State) -> None:
        self._state = state

    def encode(self, topic: Topic, image: TopicImage, images_of: Callable[[Iterable[Block]], bytes]) -> None:
        if topic.groups is not None:
            image.groups = Raw(_encode(picture(groups_of(topic))))

    def decode(self, topic: Topic, image: TopicImage) -> None:
        if image.groups != EMPTY:
            topic.groups = GroupsPart(restore(_decoder.decode(image.groups)))


def picture(groups: Mapping[str, Group]) -> list[GroupImage]:
    """Copies, because the group may change before its image is written."""
    return [
        GroupImage(name, group.committed, group.claims[:], group.acked[:], group.begin_seq, group.latest_seq)
        for name, group in groups.items()
    ]


def restore(images: list[GroupImage]) -> dict[str, Group]:
    groups: dict[str, Group] = {}
    for image in images:
        group = groups[image.name] = Group(image.committed)
        group.claims, group.acked = image.claims, image.acked
        group.begin_seq, group.latest_seq = image.begin_seq, image.latest_seq
        if image.committed < 0 and image.begin_seq < 0 and image.claims:
            # written by version 0.1
            group.begin_seq = image.claims[0].from_seq
    return groups
