"""The engine's figures: appends, reads, recovery, start and memory, from request bytes to acknowledged records."""

from __future__ import annotations

import gc
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from topics.engine.core.pending import Busy, PendingChange
from topics.engine.log.on_disk.cold import ColdMiss
from topics.engine.opening.store import Store
from topics.model.requests.records import DiffRequest, append_decoder, decode_body
from topics.model.settings import Settings

RECORD = b'{"type":"resize","url":"s3://bucket/image-%07d.png","w":256}'
MILLION = 1_000_000
ROUNDS = 3


def body_of(count: int, first: int = 0) -> bytes:
    records = b",".join(b'{"data":%b}' % (RECORD % number) for number in range(first, first + count))
    return b'{"records":[%b]}' % records


def opened(path: Path, **settings: object) -> Store:
    store = Store(str(path), Settings(**settings))  # pyright: ignore[reportArgumentType]
    for _ in store.opening():
        pass
    return store


def kill(store: Store) -> None:
    """Stop only the threads, as a kill would."""
    store.syncer.stop()
    store.worker.stop()
    store.directory.close()


def append(store: Store, topic: str, body: bytes) -> PendingChange:
    """Decode and append, waiting where an earlier change has to be durable first."""
    request = decode_body(append_decoder, body)
    while True:
        try:
            return store.engine.append(topic, request)
        except Busy as busy:
            store.commit_log.flush()
            while not busy.change.done:
                time.sleep(0.0001)
                store.settle()


def fill(store: Store, topic: str, batches: int, batch: int, per_tick: int) -> float:
    """Seconds to append `batches` batches, decoded from bytes, until they are acknowledged."""
    body = body_of(batch)
    pipeline = store.commit_log
    late: list[PendingChange] = []
    started = time.perf_counter()
    for _ in range(batches // per_tick):
        change = [append(store, topic, body) for _ in range(per_tick)]
        pipeline.flush()
        # While a sync stalls, the commit thread writes, and acknowledgements come later.
        late += [one for one in change if not one.done]
        store.settle()
        store.step()
    while not all(one.done for one in late):
        time.sleep(0.0001)
        store.settle()
    return time.perf_counter() - started


def append_rate(batch: int, per_tick: int, records: int) -> float:
    with tempfile.TemporaryDirectory() as root:
        store = opened(Path(root) / "data")
        fill(store, "t", per_tick * 20, batch, per_tick)
        took = fill(store, "t", records // batch, batch, per_tick)
        kill(store)
        return records / took


def diff_rate(*, cold: bool) -> float:
    """Reads of 1,000 over 200,000 records."""
    with tempfile.TemporaryDirectory() as root:
        store = opened(Path(root) / "data", checkpoint_bytes=1 << 36)
        fill(store, "t", 1, 100, 1)
        fill(store, "t", 2_000, 100, 4)
        if cold:
            store.close()
            store = opened(Path(root) / "data")
        count = 0
        started = time.perf_counter()
        for _ in range(5):
            cursor = 0
            while True:
                request = DiffRequest(from_seq=cursor, limit=1000)
                try:
                    diff = store.engine.diff("t", request)
                except ColdMiss as miss:
                    store.state.cold.take(miss, store.state.cold.read(miss))
                    continue
                assert len(b"[%b]" % diff.records()) > diff.count
                count += diff.count
                cursor = diff.next_from_seq
                if diff.caught_up:
                    break
            if cold:
                for block in store.state.by_name["t"].blocks:
                    store.state.cold.forget(block)
                    block.body = None
        took = time.perf_counter() - started
        kill(store)
        return count / took


def fill_log(path: Path | str, batch: int, per_tick: int) -> None:
    """A million records in a log without a checkpoint, left as by a kill."""
    store = opened(Path(path), checkpoint_bytes=1 << 36, checkpoint_ms=86_400_000)
    body = body_of(batch)
    for _ in range(MILLION // batch // per_tick):
        for _ in range(per_tick):
            append(store, "t", body)
        store.commit_log.flush()
        # Without `step`, which would begin a checkpoint.
        store.settle()
    kill(store)


def recovery_seconds(batch: int, per_tick: int) -> float:
    with tempfile.TemporaryDirectory() as root:
        fill_log(Path(root) / "data", batch, per_tick)
        started = time.perf_counter()
        store = opened(Path(root) / "data")
        took = time.perf_counter() - started
        assert store.engine.look("t").count == MILLION
        kill(store)
        return took


def clean_start_seconds() -> float:
    with tempfile.TemporaryDirectory() as root:
        store = opened(Path(root) / "data")
        fill(store, "t", 1, 100, 1)
        fill(store, "t", MILLION // 100, 100, 4)
        store.close()
        started = time.perf_counter()
        store = opened(Path(root) / "data")
        took = time.perf_counter() - started
        kill(store)
        return took


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def memory_in_memory() -> dict[str, float]:
    """Bytes per record above its rendered bytes, with a million records in memory."""
    root = Path(tempfile.mkdtemp())
    try:
        store = opened(
            root / "data", checkpoint_bytes=1 << 36, checkpoint_ms=86_400_000, segment_max_events=100_000_000
        )
        fill(store, "t", 1, 100, 1)
        gc.collect()
        before = resident_bytes()
        fill(store, "t", MILLION // 100, 100, 4)
        gc.collect()
        rendered = store.engine.look("t").bytes
        above = (resident_bytes() - before - rendered) / MILLION
        kill(store)
        return {"above": above}
    finally:
        shutil.rmtree(root)


def memory_on_disk() -> dict[str, float]:
    """Resident bytes with ten million records on disk and the default hot window, while loading and after a restart."""
    root = Path(tempfile.mkdtemp())
    try:
        store = opened(root / "data")
        fill(store, "t", 1, 100, 1)
        fill(store, "t", 10 * MILLION // 100, 100, 4)
        while store.step():
            pass
        loaded = resident_bytes()
        store.close()
        return {"loaded": loaded}
    finally:
        shutil.rmtree(root)


def in_own_process(function: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Memory is measured in a separate process that does nothing else."""
    code = f"import json; from bench.engine import {function.__name__} as f; print(json.dumps(f()))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def disk_append_p99_ms() -> float:
    """One `disk` append at a time, while another topic is bulk-loaded into the same log."""
    with tempfile.TemporaryDirectory() as root:
        store = opened(Path(root) / "data")
        fill(store, "bulk", 1, 100, 1)
        fill(store, "small", 1, 1, 1)
        bulk, small = body_of(1000), body_of(1)
        took: list[float] = []
        until = time.perf_counter() + 10
        while time.perf_counter() < until:
            append(store, "bulk", bulk)
            started = time.perf_counter()
            change = append(store, "small", small)
            store.commit_log.flush()
            while not change.done:
                time.sleep(0.0001)
                store.settle()
            took.append(time.perf_counter() - started)
            store.settle()
            store.step()
        kill(store)
        took.sort()
        return took[int(len(took) * 0.99)] * 1000


def many_topics(count: int = 100_000) -> dict[str, float]:
    root = Path(tempfile.mkdtemp())
    try:
        store = opened(root / "data", max_topics=0)
        body = body_of(1)
        started = time.perf_counter()
        for number in range(count):
            append(store, f"topic-{number}", body)
            if number % 16 == 15:
                store.commit_log.flush()
                store.settle()
        store.commit_log.flush()
        written = time.perf_counter()
        assert store.checkpoint()
        checkpointed = time.perf_counter()
        kill(store)
        store = opened(root / "data", max_topics=0)
        recovered = time.perf_counter()
        assert len(store.state.names) == count
        resident = resident_bytes()
        kill(store)
        return {
            "write": written - started,
            "checkpoint": checkpointed - written,
            "recover": recovered - checkpointed,
            "resident": resident,
        }
    finally:
        shutil.rmtree(root)


def best(measure: Callable[[], float]) -> str:
    return f"{max(measure() for _ in range(ROUNDS)):,.0f} records/s"


def least(measure: Callable[[], float]) -> str:
    return f"{min(measure() for _ in range(ROUNDS)):.2f} s"


def memory_above() -> str:
    return f"{in_own_process(memory_in_memory)['above']:.1f} bytes each"


def memory_with_history() -> str:
    return f"{in_own_process(memory_on_disk)['loaded'] / 1e6:.0f} MB"


def topics_row() -> str:
    took = in_own_process(many_topics)
    seconds = ", ".join(f"{name} {took[name]:.1f} s" for name in ("write", "checkpoint", "recover"))
    return f"{seconds}; {took['resident'] / 1e6:.0f} MB resident"


def main() -> None:
    rows: list[tuple[str, str, Callable[[], str]]] = [
        (
            "append, batches of 100, class `disk`",
            "700,000 records/s",
            lambda: best(lambda: append_rate(100, 4, MILLION)),
        ),
        (
            "append, one record each, class `disk`",
            "80,000 records/s",
            lambda: best(lambda: append_rate(1, 16, 200_000)),
        ),
        ("diff of 1,000 from memory", "3,000,000 records/s", lambda: best(lambda: diff_rate(cold=False))),
        ("diff of 1,000 from a sealed segment", "1,500,000 records/s", lambda: best(lambda: diff_rate(cold=True))),
        ("recovery of 1,000,000, batches of 100, log only", "1.5 s", lambda: least(lambda: recovery_seconds(100, 4))),
        ("recovery of 1,000,000, single records, log only", "4 s", lambda: least(lambda: recovery_seconds(1, 16))),
        ("start after a clean stop with 1,000,000 records", "0.5 s", lambda: least(clean_start_seconds)),
        ("memory above the rendered bytes, 1,000,000 records", "32 bytes each", memory_above),
        ("memory, 10,000,000 records on disk, default hot window", "under 400 MB", memory_with_history),
        (
            "`disk` append p99 under a bulk load of another topic",
            "under 5 ms",
            lambda: f"{disk_append_p99_ms():.2f} ms",
        ),
        ("100,000 topics written, checkpointed, recovered", "completes", topics_row),
    ]
    print("| work | at least | measured |\n| --- | --- | --- |")
    for work, wanted, measure in rows:
        print(f"| {work} | {wanted} | {measure()} |", flush=True)


if __name__ == "__main__":
    main()
