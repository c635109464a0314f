"""A worker that resizes pictures: `python examples/worker.py URL` works on a server, without a URL it shows itself."""

import sys

from topics import testing
from topics.workers import App, Job, Reject, Retry

app = App(sys.argv[1] if len(sys.argv) > 1 else None, grace_s=10)


@app.worker("pictures", concurrency=4)
def resize(job: Job) -> None:
    """Safe to repeat: the same picture is simply made again."""
    if not job.data["src"].endswith(".jpg"):
        raise Reject(f"not a picture: {job.data['src']}")
    if job.data["src"] == "slow.jpg" and job.deliveries == 1:
        raise Retry("not uploaded yet", delay=60)
    print("resized", job.data["src"], "at delivery", job.deliveries)


@app.worker("mails", concurrency=100)
async def send(job: Job) -> None:
    print("mail to", job.data["to"])


def show() -> None:
    """The same app on a server inside this process, whose clock is moved by hand."""
    with testing.engine() as engine:
        client = engine.client()
        client.create("pictures", type="queue", dead_letter="pictures.dead")
        client.create("mails", type="queue")
        client.append_many("pictures", [{"src": "cat.jpg"}, {"src": "slow.jpg"}, {"src": "notes.txt"}])
        client.append("mails", {"to": "ada@example.org"})
        print("deliveries:", testing.run_until_idle(app, engine))
        engine.advance(60_000)
        print("a minute later:", testing.run_until_idle(app, engine))
        for letter in client.diff("pictures.dead").records:
            print("dead letter:", letter.data, (letter.meta or {})["$dead_letter_error"])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        app.run()
    else:
        show()
