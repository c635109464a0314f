"""Enqueue jobs with RQ, or run them with its worker that runs jobs in its own process, the fastest one it has."""

from marks import arguments, enqueue, wait_for_go
from redis import Redis  # pyright: ignore[reportMissingImports]
from rq import Queue, SimpleWorker  # pyright: ignore[reportMissingImports]


def main() -> None:
    what, address, count, directory = arguments()
    queue = Queue("jobs", connection=Redis.from_url(address))
    if what == "enqueue":
        path = str(directory / "marks")
        enqueue(count, lambda: queue.enqueue("marks.mark", path, result_ttl=0))
        return
    worker = SimpleWorker([queue], connection=queue.connection)
    wait_for_go(directory)
    worker.work(logging_level="WARNING")


if __name__ == "__main__":
    main()
