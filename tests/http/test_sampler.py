"""When the loop's objects are collected: often enough that no collection has much to look at."""

import asyncio
import gc
from collections.abc import Iterator

import pytest

from topics.http.loop.sampler import YOUNG_OBJECTS_MAX, Sampler


@pytest.fixture
def uncollected() -> Iterator[None]:
    """As in a server: nothing is collected by itself."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def collections_after_a_sample(ticked: bool) -> int:
    """How many collections the first sample asks for."""

    async def sample() -> int:
        sampled = asyncio.Event()
        collections: list[None] = []
        sampler = Sampler(
            asyncio.get_running_loop(),
            0.001,
            lambda _lag_ms, _now_s: sampled.set(),
            lambda: False,
            lambda: collections.append(None),
        )
        sampler.ticked = ticked
        sampler.start()
        await sampled.wait()
        return len(collections)

    return asyncio.run(sample())


@pytest.mark.usefixtures("uncollected")
def test_objects_that_took_the_place_of_others_are_collected_although_python_counts_none() -> None:
    crowd: list[list[int]] = [[number] for number in range(5 * YOUNG_OBJECTS_MAX)]
    gc.collect()
    for number in range(len(crowd)):
        crowd[number] = [number]
    assert gc.get_count()[0] < YOUNG_OBJECTS_MAX
    assert collections_after_a_sample(ticked=True) == 1


@pytest.mark.usefixtures("uncollected")
def test_work_outside_ticks_is_collected_when_it_has_made_many_objects() -> None:
    assert collections_after_a_sample(ticked=False) == 0
    made: list[list[int]] = [[number] for number in range(2 * YOUNG_OBJECTS_MAX)]
    assert collections_after_a_sample(ticked=False) == 1
    assert made
