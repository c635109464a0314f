"""The AWS SDK for Node, unmodified."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.serving import serving
from tests.sqs.clients import NODE, environ, need
from topics.api.auth import key_id_of, sqs_secret_of

pytestmark = pytest.mark.slow


def test_a_tour_with_the_sdk_for_node(tmp_path: Path) -> None:
    # modules are looked for beside the script
    script = Path(shutil.copy(Path(__file__).parent / "tour.mjs", need(NODE) / f"tour-{tmp_path.name}.mjs"))
    try:
        with serving(tmp_path / "data", api_keys="the-key-of-node") as server:
            secrets = [key_id_of("the-key-of-node"), sqs_secret_of("the-key-of-node")]
            done = subprocess.run(
                ["node", script, f"http://127.0.0.1:{server.port}", *secrets],
                env=environ(server.port),
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
            port = server.port
    finally:
        script.unlink()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "url": f"http://127.0.0.1:{port}/000000000000/from-node",
        "sent": 2,
        "bodies": ["hällo \U0001f600", '{"number":1}', '{"number":2}'],
        "bytes": [0, 255],
        "deleted": 3,
        "left": "0",
        "error": "QueueDoesNotExist",
        "status": 400,
        "refused": "SignatureDoesNotMatch",
    }
