"""docs/API.md is true: its examples run, its table of errors is the server's."""

import re
from pathlib import Path

from tests.serving import serving
from topics.api.errors import RETRY_AFTER_S, STATUSES

PAGE = (Path(__file__).parent.parent.parent / "docs" / "API.md").read_text()


def examples() -> list[tuple[str, str, int, str]]:
    """Method, path, expected status and body of each example."""
    blocks = re.findall(r"```http\n(\S+) (\S+) → (\d+)\n(.*?)```", PAGE, re.DOTALL)
    return [(method, path, int(status), body) for method, path, status, body in blocks]


def test_every_example_gives_the_status_it_says(tmp_path: Path) -> None:
    assert len(examples()) == PAGE.count("```http") > 10
    with serving(tmp_path) as server:
        client = server.client()
        for method, path, status, body in examples():
            headers = {"Content-Type": "application/json"} if body else {}
            reply = client.request(method, path, body=body.encode() or None, headers=headers)
            assert reply.status == status, (method, path, reply)


def test_the_table_of_errors_is_the_servers() -> None:
    rows = re.findall(r"^\| ([\d, ]+) \| (`.*?`) \|", PAGE, re.MULTILINE)
    shown = {code: statuses for statuses, codes in rows for code in re.findall(r"`(\w+)`", codes)}
    assert set(shown) == set(STATUSES)
    assert all(str(STATUSES[code]) in statuses for code, statuses in shown.items())
    assert {str(STATUSES[code]) for code in RETRY_AFTER_S} == {"429", "503", "507"}
