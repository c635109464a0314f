"""What the console calls is what its page in the docs says: a route with that scope, and a command of that name."""

import re
from typing import Any, NamedTuple

import pytest

from tests.console.browser import CONSOLE, ROOT
from tests.serving import serving

METHODS = "GET|POST|PUT|PATCH|DELETE"
ROW = re.compile(rf"\| [^|]+ \| `({METHODS}) (/v0/[^`]+)` \| ([^|]+) \|(?: `([^`]+)`)? \|")


class Row(NamedTuple):
    method: str
    path: str
    scope: str
    command: str


ROWS = [Row(*found) for found in ROW.findall((ROOT / "docs" / "CONSOLE.md").read_text())]


def called() -> set[str]:
    """Every route in the sources: typed calls, and those whose answers are not JSON."""
    sources = [*CONSOLE.glob("src/**/*.ts*"), CONSOLE / "client" / "src" / "stream.ts"]
    text = "\n".join(path.read_text() for path in sources)
    typed = re.findall(rf'"((?:{METHODS}) /v0/[^"]+)"', text)
    plain = re.findall(rf'(?:text|request)\("({METHODS})", "(/v0/[^"]+)"', text)
    built = {re.sub(r"\$\{[^`]*?\)\}", "{topic}", path) for path in re.findall(r"`(/v0/topics/\$\{[^`]+)`", text)}
    assert built == {"/v0/topics/{topic}", "/v0/topics/{topic}/stream"}, "an append and a stream"
    return {*typed, *(f"{method} {path}" for method, path in plain), *STREAMS}


STREAMS = ("POST /v0/topics/{topic}", "GET /v0/topics/{topic}/stream")


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with serving(tmp_path_factory.mktemp("data")) as server:
        return server.client().get("/v0/openapi.json").json["paths"]


def test_the_page_lists_every_route_that_the_console_calls() -> None:
    assert {f"{row.method} {row.path}" for row in ROWS} == called()


def test_each_route_has_the_scope_that_the_page_says(paths: Any) -> None:
    def scope(row: Row) -> str:
        security = paths[row.path][row.method.lower()].get("security")
        if not security:
            return "none"
        return ", ".join(f"`{name}`" for name in security[0]["key"]) or "any key"

    assert [(row.path, scope(row)) for row in ROWS] == [(row.path, row.scope) for row in ROWS]


def test_each_command_exists() -> None:
    commands = set(re.findall(r"^#+ (topics [a-z -]+)$", (ROOT / "docs" / "CLI.md").read_text(), re.MULTILINE))
    pipelines = (ROOT / "docs" / "PIPELINES.md").read_text()
    missing = [
        row.command
        for row in ROWS
        if row.command and row.command not in commands and f"{row.command} " not in pipelines
    ]
    assert missing == []
    assert [row.path for row in ROWS if not row.command] == ["/v0/openapi.json"]
