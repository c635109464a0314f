"""What the ops of routers do to a state that is folded from the log: links, cursors, and copies that are cut again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.folding import Folding, batch_of
from topics.engine.core.checkpoints.image import decode_topic, encode_topic
from topics.engine.core.ops import Deleted, Dropped
from topics.engine.log.block import BLOCK_BYTES, Block
from topics.engine.log.deletion import Run
from topics.engine.log.retention import Hole, Loss
from topics.engine.log.topic import Topic
from topics.engine.opening.composition import OPS
from topics.engine.routers import fold as routers_fold
from topics.engine.routers.fold import Routes
from topics.engine.routers.ops import KEPT, NO_NODE, NO_TAG, STAMPED, VOLATILE, Forwarded, RouterDropped, RouterPut
from topics.engine.routers.part import RoutingPart, inbound_of, outbound_of, routing_of
from topics.engine.routers.router import Evidence, Router
from topics.model.errors import DamagedData
from topics.model.requests.batch import Batch
from topics.model.requests.config import Durability, TopicConfig
from topics.model.requests.routers import Guarantee, RouterConfig
from topics.storage.pack import Extent
from topics.storage.steps import at_once

S, D, OTHER = 1, 2, 3
NAMES = {S: "s", D: "d", OTHER: "other"}


@pytest.fixture
def log(tmp_path: Path) -> Folding:
    folding = Folding(tmp_path / "packs", segment_max_events=3)
    for number, name in NAMES.items():
        folding.create(number, name)
    return folding


def topic(log: Folding, topic_id: int) -> Topic:
    return log.state.by_id[topic_id]


def routes(log: Folding) -> Routes:
    return log.state.feature(Routes)


def router(log: Folding, name: str = "r") -> Router:
    return routes(log).by_name[name]


def part(log: Folding, topic_id: int) -> RoutingPart:
    found = routing_of(topic(log, topic_id))
    assert found is not None
    return found


def put(log: Folding, dest: int = D, source: int = S, cursor: int = 0, name: str = "r", *, once: bool = False) -> None:
    guarantee: Guarantee = "exactly_once" if once else "at_least_once"
    config = RouterConfig(NAMES.get(source, "gone"), NAMES[dest], guarantee=guarantee)
    log.fold(RouterPut(dest, source, cursor, name, config))


def forward(
    log: Folding,
    *runs: tuple[int, int],
    to_seq: int = 0,
    lost: int = 0,
    flags: int = 0,
    skipping: int = 0,
    dest: int = D,
) -> None:
    """The mark of copies of these runs (seq, count) of the source, as the log has it."""
    dest_topic = topic(log, dest)
    count = sum(count for _, count in runs)
    first_seq = dest_topic.head_seq + 1 + skipping + lost
    batch = Batch(first_seq, 9, count, b"", batch_of(1, *range(count)).ends if count else batch_of(1, 0).ends[:0])
    to_seq = to_seq or runs[-1][0] + runs[-1][1] - 1
    log.fold(Forwarded(dest, S, flags, 0, batch, from_seq=10**6, to_seq=to_seq, lost=lost, runs=[*runs]))


def copies(log: Folding, topic_id: int = D) -> list[bytes]:
    return [
        bytes(block.body.record(number))
        for block in topic(log, topic_id).blocks
        if block.body is not None
        for number in range(block.count)
    ]


def tags(log: Folding) -> list[bytes | str | None]:
    return [
        block.body.tag_at(number)
        for block in topic(log, D).blocks
        if block.body is not None
        for number in range(block.count)
    ]


def ends_with(found: list[bytes], *payloads: bytes) -> bool:
    return [record.rpartition(b'"data":')[2].rstrip(b"},") for record in found] == [*payloads]


# --- routers ---


def test_a_router_links_its_topics_until_it_is_removed(log: Folding) -> None:
    put(log, cursor=5)
    assert (inbound_of(topic(log, D)), outbound_of(topic(log, S))) == (router(log), [router(log)])
    assert (router(log).cursor, routes(log).names, topic(log, S) in routes(log).moved) == (5, ["r"], True)
    assert log.fold(RouterDropped(D)) == "r"
    assert log.fold(RouterDropped(D)) is None
    assert (inbound_of(topic(log, D)), outbound_of(topic(log, S))) == (None, [])
    assert (routes(log).names, routes(log).by_name) == ([], {})


def test_a_router_that_is_put_again_keeps_its_cursor_or_gets_another(log: Folding) -> None:
    put(log, cursor=5)
    first = router(log)
    put(log, cursor=KEPT, once=True)
    assert (router(log) is first, first.cursor, first.config.guarantee) == (True, 5, "exactly_once")
    assert (outbound_of(topic(log, S)), routes(log).names) == ([first], ["r"])
    put(log, cursor=7)
    assert first.cursor == 7


def test_a_router_that_changes_its_topics_leaves_the_former_ones(log: Folding) -> None:
    put(log)
    before = OPS.of(RouterPut(D, S, 0, "r", router(log).config))
    for op, others in (
        (RouterPut(D, S, 0, "r", router(log).config), ()),
        (RouterPut(OTHER, S, 0, "r", router(log).config), (D,)),
        (RouterPut(OTHER, S, 0, "new", router(log).config), ()),
    ):
        assert before.other_topics(log.state, op) == others
    put(log, dest=OTHER, source=D)
    assert (inbound_of(topic(log, OTHER)), outbound_of(topic(log, D))) == (router(log), [router(log)])
    assert (inbound_of(topic(log, D)), outbound_of(topic(log, S))) == (None, [])
    assert (router(log).source.name, router(log).dest.name) == ("d", "other")


def test_a_router_whose_source_is_gone_is_not_made(log: Folding) -> None:
    put(log, source=9)
    assert routes(log).by_name == {}


def test_routers_go_with_either_of_their_topics(log: Folding) -> None:
    put(log, name="z")
    put(log, dest=OTHER, name="b")
    assert routes(log).names == ["b", "z"]
    assert log.fold(Dropped(S)) == ["b", "z"]
    assert (routes(log).names, inbound_of(topic(log, D)), inbound_of(topic(log, OTHER))) == ([], None, None)
    put(log, source=OTHER, name="c")
    assert log.fold(Dropped(D)) == ["c"]
    assert outbound_of(topic(log, OTHER)) == []


def begin_checkpoint(log: Folding) -> list[str]:
    """At the position of the last op; the names of topics that are captured."""
    captured: list[str] = []

    def capture(found: Topic) -> None:
        captured.append(found.name)
        found.captured = 1

    state = log.state
    state.checkpoint, state.capture_from, state.capture = 1, log.position, capture
    return captured


def put_on(dest: int, source: int) -> Callable[[Folding], None]:
    return lambda log: put(log, dest=dest, source=source)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (put_on(D, S), ["d", "s"]),
        (put_on(OTHER, S), ["other", "s", "d"]),
        (lambda log: log.fold(RouterDropped(D)), ["d"]),
        (lambda log: log.fold(Dropped(S)), ["s", "d"]),
    ],
)
def test_a_running_checkpoint_captures_every_topic_of_a_router_before_it_changes(
    log: Folding, change: Callable[[Folding], None], names: list[str]
) -> None:
    put(log)
    captured = begin_checkpoint(log)
    change(log)
    assert captured == names


# --- copies ---


def test_copies_are_cut_from_the_source_again(log: Folding) -> None:
    put(log)
    log.append(S, *[{"data": n, "node": "n", "tag": "t"} for n in range(3)])
    log.append(S, *range(3, 6))
    forward(log, (2, 4))
    assert ends_with(copies(log), b"1", b"2", b"3", b"4")
    assert b'"$node":"n"' in copies(log)[0]
    assert (router(log).cursor, router(log).forwarded_total) == (5, 4)
    forward(log, (1, 1), (3, 2), (6, 1), flags=NO_NODE, to_seq=7)
    assert ends_with(copies(log)[4:], b"0", b"2", b"3", b"5")
    assert b"$node" not in copies(log)[4]
    assert (router(log).cursor, router(log).forwarded_total) == (7, 8)
    forward(log, (1, 1), flags=NO_TAG)
    assert b"$node" in copies(log)[8]
    assert [bool(tag) for tag in tags(log)] == [True, True, False, False, True, True, False, False, False]
    assert router(log).cursor == 7, "it does not go back"


def test_copies_of_records_that_have_died_since_are_cut_from_what_is_left(log: Folding) -> None:
    put(log)
    log.append(S, *range(9))
    log.append(S, 9)
    block = topic(log, S).blocks[0]
    log.fold(Deleted(S, 1, [Run(1, 1, 0), Run(4, 2, 0), Run(9, 1, 0)]))
    log.state.shrink_block(block)
    forward(log, (2, 2), (6, 3), (10, 1))
    assert ends_with(copies(log), b"1", b"2", b"5", b"6", b"7", b"9")
    for first_seq, gone in ((1, 1), (4, 4), (3, 4), (9, 9), (8, 9)):
        with pytest.raises(DamagedData, match=f"seq {gone} of topic s") as caught:
            forward(log, (first_seq, 4))
        assert (caught.value.detail["from_seq"], caught.value.detail["to_seq"]) == (gone, first_seq + 3)


def test_copies_of_a_source_or_for_a_router_that_is_not_there_are_damage(log: Folding) -> None:
    log.append(S, 1)
    with pytest.raises(DamagedData, match="topic d has copies"):
        forward(log, (1, 1))
    put(log)
    log.fold(Dropped(S))
    with pytest.raises(DamagedData, match="topic d has copies"):
        forward(log, (1, 1))


def test_a_stretch_ends_with_its_run_in_a_sparse_block(log: Folding) -> None:
    put(log)
    log.append(S, *range(9))
    log.fold(Deleted(S, 1, [Run(5, 1, 0)]))
    log.state.shrink_block(topic(log, S).blocks[0])
    forward(log, (2, 2))
    forward(log, (6, 4))
    assert ends_with(copies(log), b"1", b"2", b"5", b"6", b"7", b"8")


def test_a_piece_is_cut_once_for_the_routers_of_one_source(log: Folding, monkeypatch: pytest.MonkeyPatch) -> None:
    cuts: list[object] = []
    cut = routers_fold.cut
    monkeypatch.setattr(routers_fold, "cut", lambda stretches: (cuts.append(stretches), cut(stretches))[1])
    put(log)
    put(log, dest=OTHER, name="r2")
    log.append(S, 1, 2)
    forward(log, (1, 2))
    forward(log, (1, 2), dest=OTHER)
    assert len(cuts) == 1
    forward(log, (2, 1))
    assert len(cuts) == 2
    assert ends_with(copies(log), b"1", b"2", b"2")
    assert ends_with(copies(log, OTHER), b"1", b"2")


@pytest.mark.parametrize("less", [0, 1])
def test_copies_that_are_large_enough_share_their_bytes(log: Folding, less: int) -> None:
    put(log)
    head = batch_of(1, "").size
    log.append(S, 1)
    log.append(S, "x" * (BLOCK_BYTES // 4 - head - less))
    forward(log, (1, 1))
    forward(log, (2, 1))
    assert len(topic(log, D).blocks) == (1 if less else 2)


def test_copies_that_are_not_kept_only_move_the_cursor(log: Folding) -> None:
    put(log)
    log.append(S, 1, 2)
    forward(log, (1, 2), flags=VOLATILE)
    assert (router(log).cursor, topic(log, D).count) == (2, 0)
    routes(log).replayed()
    forward(log, (1, 2), flags=VOLATILE)
    assert topic(log, D).count == 2, "a server that runs has them"


def test_records_that_a_router_missed_are_a_hole_before_its_copies(log: Folding) -> None:
    put(log)
    log.append(S, 1, 2)
    log.append(D, "own")
    forward(log, (1, 1), lost=3)
    found = topic(log, D)
    assert (found.head_seq, found.holes) == (5, [Hole(2, 4, "source_trim", 3)])
    assert [(block.first_seq, block.last_seq) for block in found.blocks] == [(1, 1), (5, 5)]
    forward(log, (2, 1), lost=1, skipping=1)
    assert found.head_seq == 8
    assert found.holes[1:] == [Hole(6, 6, "lost", 1), Hole(7, 7, "source_trim", 1)]


def test_records_that_a_router_missed_are_one_loss_where_no_other_record_is_left(log: Folding) -> None:
    put(log)
    log.append(S, 1)
    log.append(D, "own")
    log.fold(Deleted(D, 1, [Run(1, 1, 0)]))
    forward(log, (1, 1), lost=3)
    assert (topic(log, D).losses, topic(log, D).holes) == ([Loss(1, 4, 3, "source_trim")], [])


def test_a_router_that_only_missed_records_moves_the_head_and_wakes_those_that_follow(log: Folding) -> None:
    put(log)
    put(log, dest=OTHER, source=D, name="next")
    routes(log).moved.clear()
    forward(log, lost=0, to_seq=3)
    assert (router(log).cursor, topic(log, D).head_seq, routes(log).moved) == (3, 0, {})
    forward(log, lost=2, to_seq=4)
    assert (topic(log, D).head_seq, [*routes(log).moved]) == (2, [topic(log, D)])
    routes(log).moved.clear()
    log.append(S, 1, 2, 3, 4, 5)
    routes(log).moved.clear()
    log.fold(RouterDropped(OTHER))
    forward(log, lost=2, to_seq=5)
    assert routes(log).moved == {}


def test_a_mark_of_another_source_leaves_the_cursor_alone(log: Folding) -> None:
    log.append(S, 1)
    put(log, source=OTHER, cursor=1)
    forward(log, (1, 1), to_seq=9)
    assert (router(log).cursor, router(log).forwarded_total) == (1, 0)
    log.fold(RouterDropped(D))
    forward(log, lost=1, to_seq=9)
    assert topic(log, D).head_seq == 2


# --- stamps ---


def test_stamps_say_which_record_is_a_copy_of_which(log: Folding) -> None:
    put(log, once=True)
    log.append(S, *range(5))
    forward(log, (1, 2), (4, 1), flags=STAMPED)
    log.append(D, "own")
    forward(log, (5, 1), flags=STAMPED)
    (evidence,) = part(log, D).evidence.values()
    assert [evidence.dest_seq(seq) for seq in range(1, 6)] == [1, 2, None, 3, 5]
    assert copies(log)[0].count(b"_topics_router") == 1
    forward(log, (1, 1))
    assert evidence.dest_seq(1) == 1, "a copy without a stamp is no evidence"


def test_evidence_of_copies_that_are_gone_is_forgotten_in_time(log: Folding, monkeypatch: pytest.MonkeyPatch) -> None:
    put(log, once=True)
    log.append(S, *range(300))
    evidence = Evidence()
    sizes: list[int] = []
    for number in range(140):
        # Every other record, with one between: a span each.
        forward(log, (2 * number + 1, 1), flags=STAMPED)
        if number == 125:
            log.fold(Deleted(D, 1, [Run(seq, 1, 0) for seq in range(1, 101)]))
        (evidence,) = part(log, D).evidence.values()
        sizes.append(len(evidence.counts))
    assert sizes[:127] == [*range(1, 128)]
    assert sizes[127] == 28
    log.fold(RouterDropped(D))
    assert len(evidence.counts) == sizes[-1]


# --- blocks that have left the source ---


def leave(log: Folding, first_seq: int, count: int) -> None:
    log.fold(Deleted(S, 1, [Run(first_seq, count, 0)]))


def test_a_replay_keeps_the_blocks_that_a_mark_may_still_need(log: Folding) -> None:
    put(log)
    assert part(log, S).left_blocks == []
    log.append(S, *range(3))
    log.append(S, *range(3))
    leave(log, 1, 3)
    assert [block.first_seq for block in part(log, S).kept_blocks()] == [1]
    forward(log, (2, 4))
    assert ends_with(copies(log), b"1", b"2", b"0", b"1")
    routes(log).replayed()
    assert part(log, S).left_blocks is None
    leave(log, 4, 3)
    assert part(log, S).left_blocks is None, "marks that are decided here have their copies"


def test_blocks_are_kept_from_the_position_of_a_checkpoint_to_the_capture(log: Folding) -> None:
    put(log)
    routes(log).marked()
    routes(log).replayed()
    routes(log).marked()
    log.append(S, *range(3))
    leave(log, 1, 3)
    assert len(part(log, S).kept_blocks()) == 1
    routes(log).capture_failed()
    assert part(log, S).left_blocks is None


def test_blocks_that_are_kept_stay_when_a_replay_comes_to_a_checkpoint(log: Folding) -> None:
    put(log)
    log.append(S, *range(3))
    leave(log, 1, 3)
    routes(log).marked()
    assert len(part(log, S).kept_blocks()) == 1


@pytest.mark.parametrize("captured", [False, True])
def test_a_source_that_a_checkpoint_has_not_captured_keeps_blocks_for_a_new_router(
    log: Folding, captured: bool
) -> None:
    routes(log).replayed()
    begin_checkpoint(log)
    if captured:
        log.append(S, 1)
    log.state.capture = lambda _: None
    put(log)
    assert part(log, S).left_blocks == (None if captured else [])


def test_routers_that_are_behind_start_when_the_log_is_replayed(log: Folding) -> None:
    put(log)
    put(log, dest=OTHER, source=D, name="next")
    log.append(S, 1, 2)
    forward(log, (1, 2))
    assert part(log, S).replaying
    routes(log).replayed()
    assert [*routes(log).moved] == [topic(log, D)]
    assert not part(log, S).replaying
    assert not routes(log).part_of(log.create(9, "new")).replaying


# --- in a snapshot ---


def restored(log: Folding, folder: Path) -> Folding:
    """Another state, from the images of all topics."""
    other = Folding(folder)
    extents = {block: Extent(1, 64 * number, 9) for number, block in enumerate(all_blocks(log))}
    for found in log.state.by_id.values():
        image = encode_topic(found, extents, log.state.features)
        other.state.add(at_once(decode_topic(image, other.state.features)))
    for feature in other.state.features:
        for _ in feature.restored():
            pass
    return other


def all_blocks(log: Folding) -> list[Block]:
    return [
        block
        for found in log.state.by_id.values()
        for block in [*found.blocks, *(found.routing.kept_blocks() if found.routing is not None else ())]
    ]


@pytest.mark.parametrize("durability", ["disk", "ephemeral"])
def test_a_snapshot_has_routers_evidence_and_blocks_that_marks_may_need(
    log: Folding, tmp_path: Path, durability: Durability
) -> None:
    log.append(S, *range(3))
    put(log, once=True)
    put(log, dest=OTHER, name="a")
    forward(log, (1, 2), flags=STAMPED)
    leave(log, 1, 3)
    topic(log, S).config = TopicConfig(durability=durability)
    log.create(4, "without")
    other = restored(log, tmp_path / "other")
    assert routes(other).names == ["a", "r"]
    assert (router(other).cursor, router(other).forwarded_total, router(other).config) == (2, 2, router(log).config)
    assert (inbound_of(topic(other, D)), outbound_of(topic(other, S))) == (
        router(other),
        [router(other), router(other, "a")],
    )
    (evidence,) = part(other, D).evidence.items()
    assert (evidence[0], evidence[1].dest_seq(2)) == (router(log).origin, 2)
    assert [block.first_seq for block in part(other, S).kept_blocks()] == ([1] if durability == "disk" else [])
    assert part(other, S).left_blocks is not None, "the log that follows may drop others"
    assert topic(other, 4).routing is None
    assert topic(other, OTHER).routing is not None
    assert part(other, OTHER).evidence == {}
