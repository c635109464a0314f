"""What a feature adds to the state of all topics: its part of each topic, and its part of a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, ClassVar

from mypy_extensions import mypyc_attr

if TYPE_CHECKING:
    from topics.engine.core.checkpoints.image import TopicImage
    from topics.engine.core.listing import QueueState
    from topics.engine.log.block import Block
    from topics.engine.log.topic import Topic


@mypyc_attr(allow_interpreted_subclasses=True)
class Feature:
    """Core calls these, and knows nothing else of a feature. The default of each method does nothing."""

    # The first bytes of the feature's own chunks of a snapshot; no other chunk begins with them.
    chunk: ClassVar[bytes | None] = None

    # --- topics ---

    def created(self, topic: Topic) -> None:
        """A topic is new, or about to be read from a snapshot."""

    def dropped(self, topic: Topic) -> list[str]:
        """The topic is removed; the names of what is removed with it."""
        return []

    def describe(self, topic: Topic, steady_ms: int) -> QueueState | None:
        """Its fields in the description of a topic."""
        return None

    # --- snapshots ---

    def encode(self, topic: Topic, image: TopicImage, images_of: Callable[[Iterable[Block]], bytes]) -> None:
        """Set its fields of a topic's image."""

    def decode(self, topic: Topic, image: TopicImage) -> None:
        """Restore its part of a topic; other topics may not exist yet."""

    def restore(self, chunk: bytes) -> None:
        """Restore one of its own chunks; topics that were written later do not exist yet."""

    def restored(self) -> Iterator[None]:
        """The whole snapshot is read: connect the parts. Yields from time to time."""
        yield from ()

    def replayed(self) -> None:
        """The log is folded as well."""

    # --- checkpoints ---

    def marked(self) -> None:
        """The position of a checkpoint is fixed: from now on, state is captured before it changes."""

    def capture(self) -> Iterator[bytes]:
        """Its own chunks, as of the checkpoint's position."""
        yield from ()

    def capture_late(self) -> Iterator[bytes]:
        """Chunks that may be of a later time: folding the log from the checkpoint's position gives the same result."""
        yield from ()

    def capture_failed(self) -> None:
        """The checkpoint failed."""

    def closing(self) -> None:
        """The process stops: a last checkpoint follows."""
