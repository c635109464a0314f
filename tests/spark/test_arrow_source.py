"""Records from the server as Arrow: the same rows as from lines, also if the stream breaks or there is none."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from tests.api.test_export_arrow import WithoutArrow
from tests.serving import Client, ServerProcess, serving
from topics.client import Timeout
from topics_spark.errors import DataLost
from topics_spark.options import SourceOptions, Subscription
from topics_spark.source import server
from topics_spark.source.backends import Remote
from topics_spark.source.links import link_to
from topics_spark.source.planning import batch_ranges
from topics_spark.source.ranges import Range
from topics_spark.source.reading import read_share
from topics_spark.source.rows import HELD_BYTES_MAX, READ, ROWS_MIN, merged
from topics_spark.source.server import Server

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("data")) as server:
        yield server


def source(port: int) -> Server:
    return Server(SourceOptions.parse({"url": f"http://127.0.0.1:{port}", "subscribe": "-", "timeoutseconds": "60"}))


def range_of(port: int, topic: str, from_seq: int = 0) -> Range:
    head = source(port).heads(Subscription((topic,)))[topic]
    return Range(topic, head.epoch, from_seq, head.head_seq)


def rows_of(port: int, wanted: Range, *, fail: bool = True, nodes: tuple[str, ...] = ()) -> Rows:
    found: Rows = []
    for records in source(port).read(wanted, nodes, READ, fail_on_data_loss=fail):
        columns = {name: records.columns[name].to_pylist() for name in READ}
        found += [{name: column[at] for name, column in columns.items()} for at in range(records.rows)]
    return found


def by_lines(read: Callable[[], Rows]) -> Rows:
    """As from a server without Arrow."""

    def refuse(*_given: Any, **_more: Any) -> Any:
        raise Timeout("no Arrow")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Server, "_arrow", refuse)
        return read()


def fill(client: Client, topic: str, count: int = 3000) -> None:
    for first in range(0, count, 500):
        records = [
            {
                "data": {"n": n, "x": "y" * 300},
                "tag": f"t{n % 5}",
                "node": f"n{n % 3}",
                "meta": {"m": n} if n % 9 else None,
            }
            for n in range(first, first + 500)
        ]
        assert client.post(f"/v0/topics/{topic}", {"records": records}).status in (200, 201)


def test_arrow_and_lines_give_the_same_rows(served: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(served.client(), "same")
    served.client().post("/v0/topics/same/delete", {"match": "t1", "before_seq": 1000})
    wanted = range_of(served.port, "same", 10)
    for nodes in ((), ("n1",)):
        lines = by_lines(lambda nodes=nodes: rows_of(served.port, wanted, nodes=nodes))
        with monkeypatch.context() as patched:
            patched.setattr(Server, "_lines", None)
            assert rows_of(served.port, wanted, nodes=nodes) == lines


@pytest.mark.parametrize("lines_max", [0, 500], ids=["arrow", "lines"])
def test_a_loss_fails_the_read_or_is_passed_over(
    served: ServerProcess, monkeypatch: pytest.MonkeyPatch, lines_max: int
) -> None:
    monkeypatch.setattr(server, "LINES_MAX", lines_max)
    client, topic = served.client(), f"capped-{lines_max}"
    client.put(f"/v0/topics/{topic}", {"cap_records": 5})
    client.append(topic, *range(20))
    wanted = range_of(served.port, topic)
    with pytest.raises(DataLost, match="seq 1 to 15"):
        rows_of(served.port, wanted)
    assert [row["seq"] for row in rows_of(served.port, wanted, fail=False)] == list(range(16, 21))
    with pytest.raises(DataLost, match="created again"):
        rows_of(served.port, wanted._replace(epoch=wanted.epoch + 1))
    with pytest.raises(DataLost, match="was deleted"):
        rows_of(served.port, wanted._replace(topic="absent"))


def test_few_records_come_as_lines_which_cost_the_server_less(
    served: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.client().append("few", *range(10))
    monkeypatch.setattr(Server, "_arrow", None)
    assert [row["data"] for row in rows_of(served.port, range_of(served.port, "few"))] == [str(n) for n in range(10)]


def test_small_topics_go_to_spark_as_one_batch(served: ServerProcess) -> None:
    topics = {f"small.{number}": {"records": [{"data": number}]} for number in range(40)}
    assert served.client().post("/v0/append", {"topics": topics}).status in (200, 201)
    options = SourceOptions.parse({"url": f"http://127.0.0.1:{served.port}", "subscribePattern": r"small\..*"})
    remote = Remote(options)
    (share,) = remote.shares(batch_ranges(remote, options))
    schema = StructType([StructField("topic", StringType()), StructField("data", StringType())])
    (batch,) = read_share(share, schema, options)
    assert {row["topic"]: row["data"] for row in batch.to_pylist()} == {f"small.{n}": str(n) for n in range(40)}


@pytest.mark.parametrize("sizes", [[], [0], [1], [999, 1], [1000, 1], [400, 0, 400, 400, 3], [5000, 2, 5000]])
def test_merged_batches_have_the_same_rows_in_the_same_order(sizes: list[int]) -> None:
    numbers = iter(range(20_000))
    batches = [
        pa.RecordBatch.from_pydict({"n": pa.array([next(numbers) for _ in range(size)], pa.int64())}) for size in sizes
    ]
    found = list(merged(batches))
    assert [n for batch in found for n in batch["n"].to_pylist()] == list(range(sum(sizes)))
    assert all(batch.num_rows >= ROWS_MIN for batch in found[:-1])
    assert all(batch.num_rows for batch in found)


def test_large_records_are_not_gathered() -> None:
    large = pa.RecordBatch.from_pydict({"data": pa.array(["x" * HELD_BYTES_MAX])})
    given: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(5):
            given.append(number)
            yield large

    found = merged(batches())
    assert [(next(found).num_rows, len(given)) for _ in range(5)] == [(1, count) for count in range(1, 6)]
    assert not list(found)


@contextmanager
def breaking(port: int, after_bytes: int) -> Iterator[int]:
    """A way to the server that resets the first connection that has carried so many bytes of replies."""
    listener = socket.create_server(("127.0.0.1", 0))
    broken = threading.Event()

    def carry(near: socket.socket, far: socket.socket, *, replies: bool) -> None:
        left = after_bytes
        try:
            while data := near.recv(65536):
                left -= len(data)
                if replies and left < 0 and not broken.is_set():
                    broken.set()
                    far.sendall(data[: len(data) // 2])
                    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    break
                far.sendall(data)
        except OSError:
            pass
        finally:
            for each in (near, far):
                # The other thread may wait in recv, and would keep the connection open until it returns.
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RD)
                each.close()

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", port))
            for given in ((client, far), (far, client)):
                threading.Thread(target=carry, args=given, kwargs={"replies": given[0] is far}, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
        assert broken.is_set(), "nothing was broken"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


@pytest.mark.parametrize("after_bytes", [400, 700_000])
def test_a_stream_that_breaks_is_continued_without_gap_or_double(served: ServerProcess, after_bytes: int) -> None:
    """In the head of the reply, and in the middle of a batch."""
    topic = f"broken-{after_bytes}"
    fill(served.client(), topic, 9000)
    wanted = range_of(served.port, topic)
    with breaking(served.port, after_bytes) as port:
        assert [row["seq"] for row in rows_of(port, wanted)] == list(range(1, 9001))


def test_a_server_without_arrow_is_read_by_lines_and_not_asked_again(tmp_path: Path) -> None:
    without = WithoutArrow(tmp_path).ready()
    try:
        without.client().append("t", *range(1000))
        wanted = range_of(without.port, "t")
        assert [row["data"] for row in rows_of(without.port, wanted)] == [str(n) for n in range(1000)]
        assert not link_to(f"http://127.0.0.1:{without.port}", "", 60.0).has_arrow
    finally:
        without.kill()
