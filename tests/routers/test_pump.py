"""The pump of routers on the loop that the server really runs on."""

import asyncio
from typing import cast

import pytest
import uvloop

from topics.api.pump import Pump
from topics.engine.routers.forwarding import Forwarder

STEPS = 50


class Retrying:
    """A forwarder that always has something to try again, in less time than a timer can tell."""

    pending = True
    retry_in_ms = 0.1

    def __init__(self, done: asyncio.Event) -> None:
        self.pump: Pump | None = None
        self.steps = 0
        self._done = done

    def step(self, slice_ms: float) -> bool:
        del slice_ms
        assert self.pump is not None
        self.steps += 1
        if self.steps >= STEPS:
            self._done.set()
        else:
            # A tick between two slices pokes the pump, too.
            asyncio.get_running_loop().call_soon(self.pump.poke)
        return False


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def test_a_retry_that_is_due_at_once_breaks_nothing(new_loop: object) -> None:
    failures: list[object] = []

    async def forward() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failures.append(context))
        done = asyncio.Event()
        forwarder = Retrying(done)
        forwarder.pump = pump = Pump(cast("Forwarder", forwarder), loop)
        pump.poke()
        await asyncio.wait_for(done.wait(), 60)
        pump.stop()

    with asyncio.Runner(loop_factory=new_loop) as runner:  # pyright: ignore[reportArgumentType]
        runner.run(forward())
    assert not failures
