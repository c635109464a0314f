"""`python -m tests.endurance`: a mixed load for a while, and whether what the server takes stays flat."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from tests.endurance.load import Load
from tests.endurance.sampling import Sample, sample, what_grew
from tests.serving import ServerProcess

SAMPLES = 60
SHOWN = 12


def endure(root: Path, seconds: float) -> tuple[list[Sample], Load]:
    """Samples of a server under load, and the load."""
    server = ServerProcess(root / "data", checkpoint_ms=5_000).ready()
    load = Load(server)
    load.start()
    samples: list[Sample] = []
    began_s = time.monotonic()
    try:
        while (passed_s := time.monotonic() - began_s) < seconds and not load.failures:
            time.sleep(seconds / SAMPLES)
            samples.append(sample(server.process.pid, root / "data", passed_s, load.take_latencies_ms()))
    finally:
        load.stop()
        server.terminate()
    return samples, load


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.endurance", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="topics-endurance-") as root:
        samples, load = endure(Path(root), options.minutes * 60)
    for one in samples[:: max(1, len(samples) // SHOWN)]:
        print(one)
    third = len(samples) // 3
    was, now = (median(one.p50_ms for one in part) for part in (samples[third : 2 * third], samples[2 * third :]))
    calls = f"{load.calls} calls, {load.throttled} of them throttled"
    print(f"{options.minutes:g} min, {calls}; p50 of an append {was:.2f} ms, in the last third {now:.2f} ms")
    problems = load.failures + what_grew(samples)
    print(*problems or ["memory, descriptors, threads and files are flat"], sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
