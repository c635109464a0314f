"""docs/GROUPS.md is true: its examples run, and a hash from the command line lets its user in."""

import json
import os
import re
from pathlib import Path

from tests import launching
from tests.groups.consumers import SECRET, token
from tests.serving import serving

PAGE = (Path(__file__).parent.parent.parent / "docs" / "GROUPS.md").read_text()


def test_every_example_gives_the_status_it_says(tmp_path: Path) -> None:
    blocks = re.findall(r"```http\n(\S+) (\S+) → (\d+)\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == PAGE.count("```http") > 5
    with serving(tmp_path, jwt_secret=SECRET) as server:
        client = server.client(token("dba"))
        for method, path, status, body in blocks:
            headers = {"Content-Type": "application/json"} if body else {}
            reply = client.request(method, path, body=body.encode() or None, headers=headers)
            assert reply.status == int(status), (method, path, reply)
            if "from_offset" in body:
                (shown,) = re.findall(r"answered with `(.*?)`", PAGE, re.DOTALL)
                assert reply.json == json.loads(shown)


def test_a_hash_from_the_command_line_lets_its_user_in(tmp_path: Path) -> None:
    made = launching.run(["hash"], os.environ, b"a pass word\n")
    with serving(tmp_path, jwt_secret=SECRET, users=f"ada:service:{made.stdout.decode().strip()}") as server:
        params = {"user": "ada", "password": "a pass word"}
        assert server.stranger().post("/v1/api/auth/login", params).status == 200
