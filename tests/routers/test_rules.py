"""Which routers may exist: names, ends, cycles, caps, changes in place, and what a topic takes with it when it goes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.routers.conftest import OpenRoutedRig
from tests.routers.rig import RoutedRig
from topics.engine.routers.fold import Routes
from topics.model.errors import (
    InvalidRequest,
    RouterCycle,
    RouterNotFound,
    Throttled,
    TopicExistsIncompatible,
    TopicNotFound,
)


def topics(rig: RoutedRig) -> list[str]:
    return rig.store.state.names


def test_an_identical_put_changes_nothing(rig: RoutedRig) -> None:
    assert rig.route("a->b", "a", "b", filter=["tag", "Eq", "x"])
    journal = rig.journal_bytes()
    assert not rig.route("a->b", "a", "b", filter=["tag", "Eq", "x"], backfill=True, create_dest=False)
    assert rig.journal_bytes() == journal


def test_a_put_replaces_the_configuration(rig: RoutedRig) -> None:
    rig.route("r", "a", "b", preserve_node=False)
    assert not rig.route("r", "a", "b", preserve_tag=False)
    config = rig.router("r").config
    assert (config.preserve_node, config.preserve_tag) == (True, False)


@pytest.mark.parametrize("name", ["orders->audit", "a", "A:b.c_d-e>f", "x" * 255])
def test_router_names_are_topic_names_with_an_arrow(rig: RoutedRig, name: str) -> None:
    assert rig.route(name, "a", "b")
    assert rig.router(name).name == name


@pytest.mark.parametrize("name", [">a", "", "a b", "ä", "x" * 256, "a/b", "-a"])
def test_other_router_names_are_refused(rig: RoutedRig, name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        rig.route(name, "a", "b")
    assert caught.value.detail["field"] == "router"
    with pytest.raises(InvalidRequest):
        rig.router(name)
    with pytest.raises(InvalidRequest):
        rig.unroute(name)
    assert topics(rig) == []


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"source": "a b"}, "source"),
        ({"dest": "a>b"}, "dest"),
        ({"source": "same", "dest": "same"}, "dest"),
        ({"filter": ["node", "Eq", "x"]}, "filter"),
        ({"filter": ["tag", "Glob", "*x"]}, "filter"),
        ({"filter": ["tag", "Like", "x"]}, "filter"),
        ({"filter": []}, "filter"),
    ],
)
def test_what_no_router_can_be_is_refused(rig: RoutedRig, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        rig.route("r", **{"source": "a", "dest": "b", **fields})
    assert caught.value.detail["field"] == field
    assert topics(rig) == []


def test_absent_ends_are_created(rig: RoutedRig) -> None:
    rig.route("a->b", "a", "b")
    assert topics(rig) == ["a", "b"]


def test_create_dest_false_needs_the_destination(rig: RoutedRig) -> None:
    with pytest.raises(TopicNotFound):
        rig.route("a->b", "a", "b", create_dest=False)
    assert topics(rig) == []
    rig.configure("b")
    assert rig.route("a->b", "a", "b", create_dest=False)


def test_a_destination_has_one_source(rig: RoutedRig) -> None:
    rig.route("a->c", "a", "c")
    with pytest.raises(TopicExistsIncompatible) as caught:
        rig.route("b->c", "b", "c")
    assert caught.value.detail["reason"] == "router_dest_fan_in"
    assert topics(rig) == ["a", "c"]
    rig.unroute("a->c")
    assert rig.route("b->c", "b", "c")


def test_a_second_router_of_the_same_pair_is_refused(rig: RoutedRig) -> None:
    rig.route("one", "a", "b")
    with pytest.raises(TopicExistsIncompatible) as caught:
        rig.route("two", "a", "b")
    assert caught.value.detail["router"] == "one"


def test_a_router_cannot_be_moved_onto_a_taken_destination(rig: RoutedRig) -> None:
    rig.route("one", "a", "b")
    rig.route("two", "a", "c")
    with pytest.raises(TopicExistsIncompatible):
        rig.route("two", "a", "b")
    with pytest.raises(TopicExistsIncompatible):
        rig.route("two", "x", "b")


def test_a_cycle_is_refused_and_its_path_named(rig: RoutedRig) -> None:
    rig.route("A->B", "A", "B")
    with pytest.raises(RouterCycle) as caught:
        rig.route("B->A", "B", "A")
    assert caught.value.detail["cycle"] == ["A", "B", "A"]
    rig.route("B->C", "B", "C")
    with pytest.raises(RouterCycle) as caught:
        rig.route("C->A", "C", "A")
    assert caught.value.detail["cycle"] == ["A", "B", "C", "A"]


def test_a_router_in_a_cycle_cannot_lose_its_permission(rig: RoutedRig) -> None:
    rig.route("A->B", "A", "B")
    rig.route("B->A", "B", "A", allow_cycle=True)
    with pytest.raises(RouterCycle):
        rig.route("B->A", "B", "A", allow_cycle=False)
    assert not rig.route("A->B", "A", "B", allow_cycle=True)
    with pytest.raises(RouterCycle):
        rig.route("A->B", "A", "B", allow_cycle=False)


def test_turning_a_router_round_is_no_cycle(rig: RoutedRig) -> None:
    rig.route("r", "a", "b")
    assert not rig.route("r", "b", "a")
    rig.append("b", 1)
    assert rig.copies("a") == [1]


def test_a_cycle_ends_at_the_hop_cap(rig: RoutedRig) -> None:
    rig.route("A->B", "A", "B", allow_cycle=True)
    rig.route("B->A", "B", "A", allow_cycle=True)
    rig.append("A", 1)
    rig.forward()
    assert (len(rig.copies("A")), len(rig.copies("B"))) == (5, 4)
    rig.append("B", 2)
    rig.append("A", 3)
    rig.forward()
    assert rig.router("A->B").lag == rig.router("B->A").lag == 0
    for data in (1, 2, 3):
        assert rig.copies("A").count(data) + rig.copies("B").count(data) == 9


def test_a_cycle_with_one_permission_ends_as_well(rig: RoutedRig) -> None:
    rig.route("A->B", "A", "B")
    rig.route("B->C", "B", "C")
    rig.route("C->A", "C", "A", allow_cycle=True)
    rig.append("A", 1)
    rig.forward()
    assert len(rig.copies("A")) == len(rig.copies("B")) == len(rig.copies("C")) == 9
    assert rig.append("A", 2).done


def test_a_long_chain_is_not_cut_by_the_hop_cap(rig: RoutedRig) -> None:
    names = [f"t{number:02}" for number in range(14)]
    for source, dest in itertools.pairwise(names):
        rig.route(f"{source}->{dest}", source, dest)
    rig.append("t00", 1)
    assert rig.copies("t13") == [1]


def test_the_cap_on_routers_is_refused_before_any_topic_is_made(open_rig: OpenRoutedRig) -> None:
    rig = open_rig(max_routers=1)
    rig.route("one", "a", "b")
    with pytest.raises(Throttled) as caught:
        rig.route("two", "c", "d")
    assert caught.value.detail == {"limit": "max_routers", "max": 1}
    assert topics(rig) == ["a", "b"]
    assert not rig.route("one", "a", "b", preserve_tag=False)
    rig.unroute("one")
    assert rig.route("two", "c", "d")


def test_a_router_whose_topics_would_be_too_many_makes_none_of_them(open_rig: OpenRoutedRig) -> None:
    rig = open_rig(max_topics=2)
    rig.configure("x")
    with pytest.raises(Throttled) as caught:
        rig.route("r", "a", "b")
    assert caught.value.detail == {"limit": "max_topics", "max": 2}
    assert topics(rig) == ["x"]


def test_a_changed_source_starts_at_its_head(rig: RoutedRig) -> None:
    rig.append("new", "old news")
    rig.route("r", "a", "b")
    rig.append("a", 1)
    rig.forward()
    rig.route("r", "new", "b", backfill=True)
    rig.append("a", 2)
    rig.append("new", 3)
    assert rig.copies("b") == [1, 3]
    assert rig.router("r").forwarded_total == 2
    rig.crash()
    assert rig.copies("b") == [1, 3]


def test_a_changed_destination_goes_on_where_the_router_was(rig: RoutedRig) -> None:
    rig.route("r", "a", "b")
    rig.append("a", 1)
    rig.forward()
    rig.append("a", 2)
    rig.route("r", "a", "c")
    rig.append("a", 3)
    assert (rig.copies("b"), rig.copies("c")) == ([1], [2, 3])
    rig.crash()
    assert (rig.copies("b"), rig.copies("c")) == ([1], [2, 3])
    assert rig.route("again", "a", "b")


def test_dropping_a_router_stops_it_at_once(rig: RoutedRig) -> None:
    rig.route("r", "a", "b")
    rig.append("a", 1)
    assert rig.unroute("r")
    assert rig.copies("b") == []
    assert not rig.unroute("r")
    with pytest.raises(RouterNotFound):
        rig.router("r")


@pytest.mark.parametrize("way", ["", "crash", "reopen"])
def test_dropping_a_topic_removes_every_router_that_names_it(rig: RoutedRig, way: str) -> None:
    rig.route("a->b", "a", "b")
    rig.route("b->c", "b", "c")
    rig.route("b->d", "b", "d")
    rig.route("x->y", "x", "y")
    staged = rig._commit(lambda: rig.engine.drop("b"))
    assert staged.routers_removed == ["a->b", "b->c", "b->d"]
    if way:
        getattr(rig, way)()
    assert rig.store.state.feature(Routes).names == ["x->y"]
    assert rig.append("a", 1).done
    assert rig.copies("c") == []
    assert rig.route("new", "a", "c")


def test_a_recreated_source_has_nothing_to_do_with_the_old_one(rig: RoutedRig) -> None:
    rig.route("a->b", "a", "b", guarantee="exactly_once")
    rig.append("a", 1)
    rig.forward()
    rig.drop("a")
    rig.append("a", 2)
    rig.route("a->b", "a", "b", guarantee="exactly_once", backfill=True)
    assert rig.copies("b") == [1, 2]


def test_routers_are_listed_by_name_in_pages(rig: RoutedRig) -> None:
    for number in range(5):
        rig.route(f"r{number}", "a" if number % 2 else "z", f"d{number}")
    first = rig.store.routers.list(page_size=3, wanted=lambda _: True)
    second = rig.store.routers.list(cursor=first.next_cursor, page_size=3, wanted=lambda _: True)
    assert [state.name for state in (*first.routers, *second.routers)] == ["r0", "r1", "r2", "r3", "r4"]
    assert second.next_cursor is None
    some = rig.store.routers.list(wanted=lambda state: state.config.source == "a")
    assert [state.name for state in some.routers] == ["r1", "r3"]
