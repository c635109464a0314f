"""What a bucket costs: appends beside a server without one, and `replicated` appends, on a local S3 server."""

from __future__ import annotations

import os
from pathlib import Path

from bench.load import wrk
from bench.load.directories import on_disk
from bench.report.figures import spread, table
from tests.bucket.s3_server import s3_server
from tests.serving import ServerProcess, serving

ROUNDS = 5
SECONDS = 2
WRITERS = 16
PAYLOAD = {"id": 12345, "kind": "resize", "url": "s3://bucket/a.png", "w": 256}
ONE = {"records": [{"data": PAYLOAD}]}
HUNDRED = {"records": [{"data": PAYLOAD}] * 100}
PIECES_MS = (50, 10)


def disk(plain: ServerProcess, copied: ServerProcess) -> list[list[str]]:
    """`disk` appends, the two servers in turn; the first round warms up."""
    lines: list[list[str]] = []
    for name, body in (("1 record", ONE), ("100 records", HUNDRED)):
        sides: list[list[float]] = [[], []]
        for number in range(ROUNDS + 1):
            for side, server in zip(sides, (plain, copied), strict=True):
                done = wrk.static(wrk.Aim(server.port), "/v0/topics/disk", body, WRITERS, SECONDS)
                if number:
                    side.append(done.p50_ms)
        without, with_bucket = spread(sides[0]), spread(sides[1])
        change = f"{100 * (with_bucket.median / without.median - 1):+.0f} %"
        lines.append([f"append {name}, p50", without.shown("ms"), with_bucket.shown("ms"), change])
    return lines


def replicated(server: ServerProcess, piece_ms: int, writers: int) -> list[str]:
    path = f"/v0/topics/replicated{piece_ms}"
    assert server.client().put(path, {"durability": "replicated"}).status in (200, 201)
    runs = [wrk.static(wrk.Aim(server.port), path, HUNDRED, writers, SECONDS) for _ in range(ROUNDS + 1)][1:]
    assert not any(run.errors for run in runs)
    rate = spread([100 * run.per_s for run in runs])
    return [f"{piece_ms} ms", str(writers), rate.shown("/s"), spread([run.p50_ms for run in runs]).shown("ms")]


def main() -> None:
    print(f"load average {os.getloadavg()[0]:.1f}")
    with on_disk() as root, s3_server(Path(root) / "s3") as s3:
        os.environ.update(s3.environ)
        with (
            serving(Path(root) / "plain") as plain,
            serving(Path(root) / "copied", bucket="s3://bkt/copied") as copied,
        ):
            print(table(["", "without a bucket", "with a bucket", "difference"], disk(plain, copied)))
        rows: list[list[str]] = []
        for piece_ms in PIECES_MS:
            settings = {"bucket": f"s3://bkt/pieces{piece_ms}", "bucket_piece_ms": piece_ms}
            with serving(Path(root) / f"pieces{piece_ms}", **settings) as server:
                rows += [replicated(server, piece_ms, writers) for writers in (WRITERS, 4 * WRITERS)]
        print(table(["a piece every", "writers × 100 records", "records", "p50"], rows))
    print(f"load average {os.getloadavg()[0]:.1f}")
