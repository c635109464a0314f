"""A task of Celery, acknowledged after it ran, as a lease would be; run as a program it enqueues."""

import os

from celery import Celery  # pyright: ignore[reportMissingImports]
from marks import arguments, enqueue, mark

app = Celery("with_celery", broker=os.environ["BROKER"])
app.conf.update(task_ignore_result=True, task_acks_late=True, broker_connection_retry_on_startup=True)


@app.task(name="mark")
def run(path: str) -> None:
    mark(path)


def main() -> None:
    _, _, count, directory = arguments()
    path = str(directory / "marks")
    enqueue(count, lambda: app.send_task("mark", (path,)))


if __name__ == "__main__":
    main()
