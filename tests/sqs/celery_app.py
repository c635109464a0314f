"""A Celery project as anybody may have it: only its two settings say that its broker is this server.

It reports what happens to a topic, so that a test can wait for it. Run in a venv that has Celery and nothing else.
"""

# pyright: basic, reportMissingImports=false, reportFunctionMemberAccess=false

import json
import os
import signal
import time
import urllib.request

from celery import Celery

app = Celery("celery_app")
app.conf.broker_url = os.environ["BROKER_URL"]
app.conf.broker_transport_options = {"is_secure": False, "visibility_timeout": int(os.environ["VISIBILITY_S"])}

app.conf.task_default_queue = "celery-jobs"
app.conf.worker_prefetch_multiplier = 1
app.conf.broker_connection_retry_on_startup = True


def report(**seen):
    body = json.dumps({"records": [{"data": {**seen, "at_ms": int(time.time() * 1000)}}]}).encode()
    request = urllib.request.Request(
        os.environ["REPORT_TO"],
        body,
        {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['REPORT_KEY']}"},
    )
    urllib.request.urlopen(request).close()


@app.task
def add(a, b):
    report(task="add", result=a + b)


@app.task(bind=True, max_retries=5)
def flaky(self):
    report(task="flaky", retries=self.request.retries)
    if self.request.retries < 2:
        raise self.retry(countdown=0)


@app.task(bind=True, acks_late=True)
def long(self):
    """The first worker is killed in the middle of it."""
    report(task="long", worker=os.environ["WORKER"])
    if os.environ["WORKER"] == "1":
        signal.pause()


def send():
    report(task="sender")
    add.delay(2, 3)
    flaky.delay()
    add.apply_async((20, 30), countdown=2)


if __name__ == "__main__":
    {"send": send, "long": long.delay}[os.environ["SEND"]]()
