"""docs/SQS.md can be pasted: its commands and programs are run, with the address of a server of their own."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.serving import TOPICS, ServerProcess
from tests.sqs.clients import NEW, environ, need
from topics.api.auth import key_id_of, sqs_secret_of

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parent.parent.parent / "docs" / "SQS.md").read_text()
ADDRESS = "127.0.0.1:4000"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def run(command: list[str | Path], server: ServerProcess) -> str:
    path = f"{need(NEW) / 'bin'}:{TOPICS.parent}:/usr/bin:/bin"
    env = environ(server.port, PATH=path, TOPICS_URL=f"http://127.0.0.1:{server.port}")
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_commands_and_the_program_do_what_the_page_says(server: ServerProcess) -> None:
    credentials, session = (block.replace(ADDRESS, f"127.0.0.1:{server.port}") for block in blocks("sh"))
    shown = run(["bash", "-euc", credentials], server)
    assert shown == f"sqs://{key_id_of('the-key')}:{sqs_secret_of('the-key')}@127.0.0.1:{server.port}\n"
    assert "orders" in run(["bash", "-euc", session], server)
    _, program = blocks("python")
    assert run([need(NEW) / "bin" / "python", "-c", program], server) == '{"order": 1}\n{"order": 2}\n'


def test_a_celery_project_has_two_settings_for_it() -> None:
    settings, _ = blocks("python")
    assert re.findall(r"^(\w+) =", settings, re.MULTILINE) == ["broker_url", "broker_transport_options"]
    project = (Path(__file__).parent / "celery_app.py").read_text()
    assert re.findall(r"^app\.conf\.(broker_\w+) =", project, re.MULTILINE)[:2] == [
        "broker_url",
        "broker_transport_options",
    ]
