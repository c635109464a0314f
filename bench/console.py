"""The console: how soon it is painted, what its history and an open page cost, and how fluid a busy live page is.

    paint     a browser with empty caches opens the overview: the first paint, and the first numbers
    history   the points that the server keeps while nobody looks, as a share of a core
    overview  what one open overview costs the server, more than none
    live      frames a second of a live page while another process appends 5,000 records a second

Chromium runs without a GPU and shares the cores with the server and the writer.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from playwright.sync_api import Browser, Page, expect

from tests.console.browser import chromium, install, opened
from tests.console.filling import fill
from tests.queues.queue_rig import QueueRig
from tests.serving import ServerProcess, serving
from topics.api.console.history import STEP_MS, History
from topics.api.console.queue_history import QUEUES_MAX
from topics.api.metrics import Usage

OPENINGS = 10
OPEN_S = 30
LIVE_S = 10
RATE = 5_000
PER_APPEND = 50
POINTS = 500
TICKS = os.sysconf("SC_CLK_TCK")

# Counts the frames of the page, and the longest wait between two of them.
FRAMES = """
seconds => new Promise(done => {
  let frames = 0, longest = 0, began = performance.now(), last = began;
  const step = now => {
    frames++;
    longest = Math.max(longest, now - last);
    last = now;
    if (now - began < 1000 * seconds) requestAnimationFrame(step);
    else done({frames: frames / ((now - began) / 1000), longest});
  };
  requestAnimationFrame(step);
})
"""
# Notes when the first number is on the page.
COMPLETE = """
new MutationObserver((_, observer) => {
  if (document.querySelector('.tile') === null) return;
  window.complete = performance.now();
  observer.disconnect();
}).observe(document, {childList: true, subtree: true})
"""
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def share(pid: int, seconds: float) -> float:
    """Of a core, in percent, from now on."""
    before, began_s = cpu_s(pid), time.perf_counter()
    time.sleep(seconds)
    return 100 * (cpu_s(pid) - before) / (time.perf_counter() - began_s)


def paint(browser: Browser, server: ServerProcess) -> dict[str, float]:
    """In ms from the start of the navigation; each time with a profile of its own, so nothing is cached.

    The CPU is that of the page's main thread until its numbers are seen, some of its charts included: what is left
    of it on an idle machine.
    """
    painted, complete, used = [], [], []
    for _ in range(OPENINGS):
        with opened(browser, server) as console:
            console.page.add_init_script(COMPLETE)
            inspector = console.page.context.new_cdp_session(console.page)
            inspector.send("Performance.enable", {"timeDomain": "threadTicks"})
            console.go("overview")
            expect(console.page.locator(".tile").first).to_be_visible()
            metrics = inspector.send("Performance.getMetrics")["metrics"]
            used.append(1000 * next(one["value"] for one in metrics if one["name"] == "TaskDuration"))
            complete.append(float(console.page.evaluate("window.complete")))
            painted.append(float(console.page.evaluate(PAINT)))
    return {
        "first paint ms": median(painted),
        "longest": max(painted),
        "with its numbers ms": median(complete),
        "CPU ms": median(used),
    }


def history(root: Path) -> dict[str, float]:
    """Percent of a core for one point every 5 s, without queues and with as many as have a past, each with jobs."""

    def cost(queues: int) -> float:
        with QueueRig(root / f"history-{queues}") as rig:
            for number in range(queues):
                rig.queue(f"q{number}")
                rig.jobs(10, f"q{number}")
                rig.claimed("w", f"q{number}", max=3)
            kept = History(rig.store, Usage(), str(root), rig.clock.now_ms)
            began_s = time.perf_counter()
            for number in range(1, POINTS + 1):
                kept.note(1.0, number * STEP_MS / 1000)
            return 100 * (time.perf_counter() - began_s) / POINTS / (STEP_MS / 1000)

    return {"% of a core": cost(0), f"with {QUEUES_MAX} queues": cost(QUEUES_MAX)}


def overview(browser: Browser, server: ServerProcess) -> dict[str, float]:
    closed = share(server.process.pid, OPEN_S)
    with opened(browser, server) as console:
        console.go("overview")
        expect(console.page.locator(".tile").first).to_be_visible()
        looking = share(server.process.pid, OPEN_S)
    return {"% of a core, closed": closed, "open": looking, "more": looking - closed}


def live(browser: Browser, server: ServerProcess) -> dict[str, float]:
    server.client().append("flood", 0)
    with opened(browser, server) as console:
        console.go("topics/flood/live")
        expect(console.page.locator(".badge.ok", has_text="Live")).to_be_visible()
        program = f"from bench.console import flood; flood({server.port}, {LIVE_S + 4})"
        writer = subprocess.Popen([sys.executable, "-c", program])
        expect(console.page.locator("tbody tr")).to_have_count(100)
        time.sleep(1)
        before = received(console.page)
        seen = console.page.evaluate(FRAMES, LIVE_S)
        rate = (received(console.page) - before) / LIVE_S
        writer.wait()
    return {"records/s": rate, "frames/s": seen["frames"], "longest frame ms": seen["longest"]}


def received(page: Page) -> int:
    text = page.get_by_test_id("live-numbers").inner_text()
    return int(text.split(" ")[0].replace(",", ""))


def flood(port: int, seconds: float) -> None:
    """Append at a steady rate, whatever the answers take."""
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port)
    record = b'{"data":{"order":1042,"customer":"c-17","total":19.75,"items":["tea","milk"]},"tag":"customer-17"}'
    body = b'{"records":[' + b",".join([record] * PER_APPEND) + b"]}"
    due_s = time.perf_counter()
    for _ in range(int(seconds * RATE / PER_APPEND)):
        connection.request("POST", "/v0/topics/flood?return_seqs=false", body, {"Content-Type": "application/json"})
        connection.getresponse().read()
        due_s += PER_APPEND / RATE
        time.sleep(max(0.0, due_s - time.perf_counter()))


def main() -> None:
    install()
    print("| work | measured |\n| --- | --- |")
    with tempfile.TemporaryDirectory() as root, chromium() as browser:
        rows: dict[str, Callable[[Browser, ServerProcess], dict[str, float]]] = {
            "the overview, opened for the first time": paint,
            f"one open overview, {OPEN_S} s": overview,
            f"a live page at {RATE:,} records/s": live,
        }
        show("the history while the console is closed", history(Path(root)))
        for name, measure in rows.items():
            with serving(Path(root) / measure.__name__) as server:
                fill(server.client())
                show(name, measure(browser, server))


def show(name: str, figures: dict[str, float]) -> None:
    shown = ", ".join(
        f"{key} {value:.3g}" if value < 1_000 else f"{key} {value:,.0f}" for key, value in figures.items()
    )
    print(f"| {name} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
