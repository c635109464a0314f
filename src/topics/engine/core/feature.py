"""What a feature adds to the state of all topics: its part of each topic, and its part of a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from topics.engine.core.checkpoints.image import TopicImage
    from topics.engine.core.listing import QueueState
    from topics.engine.log.block import Block
    from topics.engine.log.topic import Topic


class Feature:
    """Core calls these, and knows nothing else of a feature. What a feature has no use for does nothing."""

    # How the feature's own chunks of a snapshot begin; no other chunk does.
    chunk: ClassVar[bytes | None] = None

    # --- topics ---

    def created(self, topic: Topic) -> None:
        """A topic is new, or about to be read from a snapshot."""

    def dropped(self, topic: Topic) -> list[str]:
        """The topic goes; the names of what goes with it."""
        return []

    def describe(self, topic: Topic, steady_ms: int) -> QueueState | None:
        """Its lines in the description of a topic."""
        return None

    # --- snapshots ---

    def encode(self, topic: Topic, image: TopicImage, images_of: Callable[[Iterable[Block]], bytes]) -> None:
        """Fill in its fields of a topic's image."""

    def decode(self, topic: Topic, image: TopicImage) -> None:
        """Take its part of a topic back; other topics may not be there yet."""

    def restore(self, chunk: bytes) -> None:
        """Take one of its own chunks back; topics that were written later are not there yet."""

    def restored(self) -> Iterator[None]:
        """All of the snapshot is read: tie it together. Yields now and then."""
        yield from ()

    def replayed(self) -> None:
        """The log is folded in, too."""

    # --- checkpoints ---

    def marked(self) -> None:
        """The position of a checkpoint is fixed: from now on what changes is captured before it does."""

    def capture(self) -> Iterator[bytes]:
        """Its own chunks, as of the checkpoint's position."""
        yield from ()

    def capture_late(self) -> Iterator[bytes]:
        """Chunks that may be of any later time: folding the log from the checkpoint's position leads to the same."""
        yield from ()

    def capture_failed(self) -> None:
        """The checkpoint came to nothing."""

    def closing(self) -> None:
        """The process stops: a last checkpoint follows."""
