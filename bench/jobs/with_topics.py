"""Enqueue jobs with this project's client, or run them with its worker library."""

from marks import arguments, enqueue, mark, wait_for_go

from topics.client import Client
from topics.workers import App, Job

CONCURRENCY = 8


def main() -> None:
    what, address, count, directory = arguments()
    if what == "enqueue":
        job = {"path": str(directory / "marks")}
        with Client(address) as client:
            client.create("jobs", type="queue")
            enqueue(count, lambda: client.append("jobs", job))
        return
    app = App(address)

    @app.worker("jobs", concurrency=CONCURRENCY)
    async def run(job: Job) -> None:
        mark(job.data["path"])

    wait_for_go(directory)
    app.run()


if __name__ == "__main__":
    main()
