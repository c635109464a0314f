"""Long polls and the appends that answer them: pairs of connections, each on its own topic, driven by one loop."""

from __future__ import annotations

import re
import selectors
import time

from bench.load.wire import Wire

NEXT = re.compile(rb'"next_from_seq":(\d+)')


class Pair:
    """A reader that waits for the next record of a topic, and the writer that appends it."""

    def __init__(self, port: int, bearer: str, topic: str, payload: object) -> None:
        self.reader, self.writer = Wire(port, bearer), Wire(port, bearer)
        self._path = f"/v0/topics/{topic}/diff"
        self._append = self.writer.bytes_of(f"/v0/topics/{topic}", {"records": [{"data": payload}]})
        self.writer.socket.sendall(self._append)
        self.writer.answer()
        self._cursor = 1
        self._answers_due = 0

    def begin(self) -> None:
        self.reader.send(self._path, {"from_seq": self._cursor, "wait_ms": 30_000})

    def append(self) -> None:
        self.writer.socket.sendall(self._append)
        self._answers_due = 2

    def take(self, wire: Wire) -> bool:
        """Whether both have their reply, so that the next round may begin."""
        body = wire.take()
        if body is None:
            return False
        if wire is self.reader:
            found = NEXT.search(body)
            assert found, body
            cursor = int(found[1])
            assert cursor == self._cursor + 1, body
            self._cursor = cursor
        self._answers_due -= 1
        return self._answers_due == 0

    def close(self) -> None:
        self.reader.close()
        self.writer.close()


class Pairs:
    """Some pairs, connected, and the loop that drives them."""

    def __init__(self, port: int, bearer: str, name: str, payload: object, count: int) -> None:
        self._pairs = [Pair(port, bearer, f"{name}-{number}", payload) for number in range(count)]
        self._selector = selectors.DefaultSelector()
        for pair in self._pairs:
            for wire in (pair.reader, pair.writer):
                self._selector.register(wire.socket, selectors.EVENT_READ, (pair, wire))

    def run(self, seconds: float) -> int:
        """How often a long poll was answered by an append in the given time; then the connections are closed.

        Polls of the pairs that are ready are sent first, their appends after all of them, so that a poll waits when
        its record comes.
        """
        end_s = time.perf_counter() + seconds
        ready, working, answered = self._pairs, len(self._pairs), 0
        try:
            while True:
                if time.perf_counter() >= end_s:
                    working -= len(ready)
                    ready = []
                if not working:
                    return answered
                for pair in ready:
                    pair.begin()
                for pair in ready:
                    pair.append()
                events = self._selector.select(timeout=60)
                assert events, "no reply within a minute"
                ready = [key.data[0] for key, _ in events if key.data[0].take(key.data[1])]
                answered += len(ready)
        finally:
            self._selector.close()
            for pair in self._pairs:
                pair.close()
