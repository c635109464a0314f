"""What a running server takes: memory, descriptors, threads, files; and whether it stays at that."""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

MIB = 1 << 20
# What may be more in the last third of the run than in the second: noise of allocator, checkpoints and log files.
SLACK = {
    "rss_mib": (1.1, 16.0),
    "descriptors": (1.0, 20.0),
    "threads": (1.0, 2.0),
    "files": (1.0, 12.0),
    "disk_mib": (1.5, 16.0),
}


class Sample(NamedTuple):
    at_s: float
    rss_mib: float
    descriptors: int
    threads: int
    files: int
    disk_mib: float
    p50_ms: float
    p99_ms: float

    def __str__(self) -> str:
        return (
            f"{self.at_s / 60:6.1f} min  {self.rss_mib:7.1f} MiB  {self.descriptors:4} fds  {self.threads:3} threads  "
            f"{self.files:4} files {self.disk_mib:7.1f} MiB on disk, append {self.p50_ms:.2f} ms, p99 {self.p99_ms:.2f}"
        )


def sample(pid: int, data_dir: Path, at_s: float, latencies_ms: list[float]) -> Sample:
    proc = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line)
    sizes: list[int] = []
    for folder, _, names in os.walk(data_dir):
        for name in names:
            try:
                sizes.append(os.stat(os.path.join(folder, name)).st_blocks * 512)
            except FileNotFoundError:
                pass  # gone since it was listed
    cuts = quantiles(latencies_ms, n=100) if len(latencies_ms) > 1 else [0.0] * 99
    return Sample(
        at_s,
        int(status["VmRSS"].split()[0]) / 1024,
        len(os.listdir(proc / "fd")),
        int(status["Threads"]),
        len(sizes),
        sum(sizes) / MIB,
        cuts[49],
        cuts[98],
    )


def what_grew(samples: list[Sample]) -> list[str]:
    """Compares the second third of a run with its last; the first is for caches to fill."""
    third = len(samples) // 3
    before, after = samples[third : 2 * third], samples[2 * third :]
    found: list[str] = []
    for name, (factor, more) in SLACK.items():
        was, now = (median(getattr(one, name) for one in part) for part in (before, after))
        if now > was * factor + more:
            found.append(f"{name} was {was:.1f} and is {now:.1f}")
    return found
