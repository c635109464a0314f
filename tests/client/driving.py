"""Either half of the client with the same synchronous interface, so that every test is written once."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

from tests.patience import PATIENCE_S
from topics.client import AsyncClient

ANSWER_S_MAX = PATIENCE_S


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(ANSWER_S_MAX)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Driven:
    """An asynchronous object whose methods wait for their coroutines."""

    def __init__(self, target: Any, loop: Loop) -> None:
        self._target = target
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if not inspect.ismethod(value):
            return value
        return lambda *given, **named: self._outcome(value, given, named)

    def _outcome(self, method: Any, given: Any, named: Any) -> Any:
        async def called() -> Any:
            result = method(*given, **named)
            return await result if inspect.isawaitable(result) else result

        return self._wrapped(self._loop.run(called()))

    def _wrapped(self, value: Any) -> Any:
        if hasattr(value, "__aiter__") or type(value).__module__.startswith("topics.client.aio"):
            return Driven(value, self._loop)
        return value

    def __iter__(self) -> Iterator[Any]:
        return iter(Driven(self._target.__aiter__(), self._loop).__next__, self)

    def __next__(self) -> Any:
        async def following() -> Any:
            try:
                return await anext(self._target)
            except StopAsyncIteration:
                return STOPPED

        found = self._loop.run(following())
        if found is STOPPED:
            raise StopIteration
        return found

    def __enter__(self) -> Driven:
        self._loop.run(self._target.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.run(self._target.__aexit__(*error))


STOPPED = object()


def driven(loop: Loop, *given: Any, **named: Any) -> Any:
    """An AsyncClient, driven."""

    async def made() -> AsyncClient:
        return AsyncClient(*given, **named)

    return Driven(loop.run(made()), loop)
