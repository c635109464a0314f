"""The watchdog: how long the loop was blocked, and by what."""

import logging
import time

import pytest

from tests.http.wire import Clock, get, serving
from topics.http.loop.watchdog import WINDOW_S, Watchdog
from topics.http.request import Request


def test_the_longest_turn_of_the_last_minutes_is_kept() -> None:
    clock = Clock()
    watchdog = Watchdog(clock)
    for took_s in (0.01, 0.05, 0.02):
        watchdog.begin()
        clock.now_s += took_s
        watchdog.end()
    assert watchdog.longest_s == pytest.approx(0.05)
    clock.now_s += WINDOW_S
    assert watchdog.longest_s == pytest.approx(0.05)
    clock.now_s += WINDOW_S
    assert watchdog.longest_s == 0.0


def test_a_slow_turn_is_logged_with_its_slowest_request(caplog: pytest.LogCaptureFixture) -> None:
    def handle(request: Request) -> None:
        if request.path_segments == ["slow"]:
            until_s = time.perf_counter() + 0.15
            while time.perf_counter() < until_s:
                pass
        request.reply(200, b"{}")

    with caplog.at_level(logging.WARNING, "topics.http"), serving(handle) as server, server.connect() as client:
        assert client.request(get(b"/quick")).status == 200
        assert client.request(get(b"/slow?token=secret")).status == 200
        assert client.request(get(b"/quick")).status == 200
    (line,) = [record.getMessage() for record in caplog.records if "/slow" in record.getMessage()]
    assert line.startswith("the loop was blocked for ")
    assert "GET /slow" in line
    assert "secret" not in line


def test_a_turn_that_asks_for_another_is_measured_from_its_own_beginning(caplog: pytest.LogCaptureFixture) -> None:
    def handle(request: Request) -> None:
        request.reply(200, b"{}")

    with caplog.at_level(logging.WARNING, "topics.http"), serving(handle) as server, server.connect() as client:

        def slow_once() -> None:
            until_s = time.perf_counter() + 0.15
            while not slow and time.perf_counter() < until_s:
                pass
            slow.append(None)
            if len(slow) == 1:
                server.listener.wake()

        slow: list[None] = []
        server.listener.on_tick_end(slow_once)
        assert client.request(get(b"/x")).status == 200
    assert [record for record in caplog.records if "blocked for" in record.getMessage()]


def test_slow_turns_are_counted() -> None:
    clock = Clock()
    watchdog = Watchdog(clock)
    watchdog.note(0.5, "a checkpoint")
    watchdog.begin()
    clock.now_s += 0.2
    watchdog.end()
    watchdog.note(0.05, "a checkpoint")
    assert watchdog.slow_turns_total == 2
