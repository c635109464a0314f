"""The table of ops: all that commit, recovery, repair and inspection need to know of a kind of op, in one row.

`core` declares its own rows in `core/fold.py`, a feature in its `fold.py`; `opening/composition.py` combines them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from topics.engine.core.commit_log import CommitLog
    from topics.engine.core.pending import PendingChange
    from topics.engine.core.state import State
    from topics.model.requests.config import TopicConfig


class Op(Protocol):
    """What the log stores. Its own topic, or another object with an id of the same kind, is `topic_id`."""

    @property
    def topic_id(self) -> int: ...

    def encode(self) -> bytes: ...


AnOp = TypeVar("AnOp", bound=Op)


class Addition(NamedTuple):
    """Records that an op adds to a topic. `seqs` may be more than `records`: some may be skipped before them."""

    topic_id: int
    first_seq: int
    seqs: int
    records: int
    size: int
    # By how much all topics together grow: 0 if the records were counted before.
    growth: int

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.seqs - 1


def _adds_nothing(_op: Any) -> Iterable[Addition]:
    return ()


def _makes_none(_op: Any) -> tuple[str, ...]:
    return ()


def _configures_none(_op: Any) -> tuple[TopicConfig, ...]:
    return ()


def _never(_op: Any) -> bool:
    return False


def _own_only(_state: State, _op: Any) -> tuple[int, ...]:
    return ()


def _nothing_follows(_commit_log: CommitLog, _op: Any, _found: Any, _change: PendingChange) -> None:
    pass


class OpKind(Generic[AnOp]):
    """One kind of op.

    fold          changes the state; its result is passed to `published`
    published     what follows: caps, waiters, the result of the change
    other_topics  further topics that the op changes: earlier ops of those are published first
    adds          the records it adds: their seqs and bytes are reserved until it is published
    makes         the names of the topics it creates, reserved in the same way
    configures    the configurations that it gives to topics
    dated         whether it holds deadlines, or delays that become some: the log must record the time
    needs_topic   whether it has an effect only if its topic exists
    ordered       whether later ops of its topics wait for it; not if it changes nothing that a reader sees
    carries_floor whether it contains the floor of its topic when it was decided
    derives       whether its fold reads other topics, as they were when it was decided
    written_out   its bytes without such a reference, for one that is folded later than it was decided
    """

    __slots__ = (
        "adds",
        "carries_floor",
        "codes",
        "configures",
        "dated",
        "decode",
        "derives",
        "fold",
        "makes",
        "needs_topic",
        "ordered",
        "other_topics",
        "published",
        "type",
        "written_out",
    )

    def __init__(
        self,
        type: type[AnOp],
        *codes: int,
        decode: Callable[[bytes], AnOp],
        fold: Callable[[State, AnOp], Any],
        published: Callable[[CommitLog, AnOp, Any, PendingChange], None] = _nothing_follows,
        other_topics: Callable[[State, AnOp], tuple[int, ...]] = _own_only,
        adds: Callable[[AnOp], Iterable[Addition]] = _adds_nothing,
        makes: Callable[[AnOp], tuple[str, ...]] = _makes_none,
        configures: Callable[[AnOp], tuple[TopicConfig, ...]] = _configures_none,
        dated: Callable[[AnOp], bool] = _never,
        needs_topic: bool = True,
        ordered: bool = True,
        carries_floor: bool = False,
        derives: bool = False,
        written_out: Callable[[AnOp], bytes] | None = None,
    ) -> None:
        self.type = type
        self.codes = codes
        self.decode = decode
        self.fold = fold
        self.published = published
        self.other_topics = other_topics
        self.adds = adds
        self.makes = makes
        self.configures = configures
        self.dated = dated
        self.needs_topic = needs_topic
        self.ordered = ordered
        self.carries_floor = carries_floor
        self.derives = derives
        self.written_out = written_out


class OpTable:
    """All kinds of ops, by type and by code."""

    def __init__(self, *packages: Iterable[OpKind[Any]]) -> None:
        self.kinds: dict[type, OpKind[Any]] = {}
        self._decoders: dict[int, Callable[[bytes], Op]] = {}
        for kind in (kind for kinds in packages for kind in kinds):
            assert kind.type not in self.kinds, "an op is declared once"
            self.kinds[kind.type] = kind
            for code in kind.codes:
                assert code not in self._decoders, "a code identifies one op"
                self._decoders[code] = kind.decode

    def decode(self, body: bytes) -> Op:
        """The op that is encoded in these bytes of a verified frame."""
        decoder = self._decoders.get(body[0])
        if decoder is None:
            raise ValueError(f"op code {body[0]} is unknown: the log was written by a newer version")
        return decoder(body)

    def of(self, op: Op) -> OpKind[Any]:
        return self.kinds[type(op)]
