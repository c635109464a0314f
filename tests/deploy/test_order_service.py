"""examples/order_service.py as a service: orders over HTTP, their mails, and a server that is away for a while."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.parts import ROOT
from tests.live.rig import eventually
from tests.live.test_proxy import answers
from tests.patience import PATIENCE_S
from tests.serving import ServerProcess, free_port

pytestmark = pytest.mark.slow


def ask(address: str, body: Any = None, **headers: str) -> Any:
    data = None if body is None else json.dumps(body).encode()
    sent = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    with urllib.request.urlopen(urllib.request.Request(address, data, sent), timeout=PATIENCE_S) as reply:
        return json.loads(reply.read())


def test_orders_are_taken_once_counted_and_confirmed_over_a_restart(tmp_path: Path) -> None:
    port, service_port = free_port(), free_port()
    server = ServerProcess(tmp_path / "data", port=port).ready()
    url = f"http://127.0.0.1:{service_port}"
    command = [sys.executable, "-u", ROOT / "examples" / "order_service.py", f"http://127.0.0.1:{port}"]
    with (tmp_path / "printed").open("wb") as printed:
        environ = {**os.environ, "PORT": str(service_port)}
        service = subprocess.Popen(command, env=environ, stdout=printed, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: answers(service_port))
        order = {"customer": "ada", "items": ["tea"], "total": "9.90"}
        assert ask(f"{url}/orders", order, Idempotency_Key="a") == {"order": 1, "repeated": False}
        assert server.terminate() == 0
        server = ServerProcess(tmp_path / "data", port=port).ready()
        assert ask(f"{url}/orders", order, Idempotency_Key="a") == {"order": 1, "repeated": True}
        assert ask(f"{url}/orders", order, Idempotency_Key="b") == {"order": 2, "repeated": False}
        assert ask(f"{url}/customers/ada?after=2") == {"spent": "19.80"}
        eventually(lambda: (tmp_path / "printed").read_text().count("mail to ada") >= 2)
        service.send_signal(signal.SIGTERM)
        # uvicorn raises the signal again when it has shut down.
        assert service.wait(timeout=PATIENCE_S) in (0, -signal.SIGTERM)
        eventually(lambda: server.client().state("mails")["count"] == 0)
    finally:
        service.kill()
        service.wait()
        server.kill()
