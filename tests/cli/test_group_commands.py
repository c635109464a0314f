"""`topics group`: how far consumer groups are and putting them elsewhere, by token or by login."""

from collections.abc import Iterator

import pytest

from tests.cli.terminal import Done, Invoke
from tests.groups.consumers import SECRET, Consumer, token
from tests.serving import ServerProcess, serving
from topics.api.groups.users import hash_password


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    users = f"ops:dba:{hash_password('pass word')}"
    with serving(tmp_path_factory.mktemp("data"), jwt_secret=SECRET, users=users) as server:
        yield server


@pytest.fixture
def group(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    def group(*arguments: object, **environ: str) -> Done:
        for name, value in {"TOPICS_TOKEN": token(role="dba"), **environ}.items():
            monkeypatch.setenv(name, value)
        return invoke("group", *arguments)

    return group


def test_a_group_is_listed_measured_and_put_elsewhere(server: ServerProcess, group: Invoke) -> None:
    server.client().append("t", *range(10))
    consumer = Consumer(server.client(token()), "t")
    assert consumer.offsets(limit=4) == [0, 1, 2, 3]
    consumer.ack(3)
    (standing,) = group("ls", "t", "-o", "json").json
    assert (standing["group_id"], standing["committed_offset"], standing["lag"]) == ("workers", 3, 6)
    rows = group("ls").out.splitlines()
    assert rows[1].split()[:5] == ["t", "0", "workers", "3", "6"]
    assert group("lag", "t", "workers").out == "6\n"
    assert group("lag", "t", "workers", "--at-most", 5).code == 1
    assert group("lag", "t", "workers", "--at-most", 6).code == 0

    moved = group("reset", "t", "workers", "--to", "earliest")
    assert moved.json == [{"topic": "t", "group": "workers", "partition": 0, "next_offset": 0}]
    assert group("reset", "t", "workers", "--to", 7).json[0]["next_offset"] == 7
    assert group("lag", "t", "workers").out == "3\n"
    assert group("reset", "t", "workers", "--forget").err == "topics: removed workers from t\n"
    gone = group("lag", "t", "workers")
    assert (gone.code, gone.complaint.startswith("the group workers has not read t;")) == (1, True)


def test_a_user_logs_in_with_a_password_from_the_environment(group: Invoke) -> None:
    login = {"TOPICS_TOKEN": "", "TOPICS_USER": "ops"}
    assert group("ls", **login, TOPICS_PASSWORD="pass word").code == 0
    assert group("ls", **login, TOPICS_PASSWORD="wrong").code == 4
    missing = group("ls", **login, TOPICS_PASSWORD="")
    assert (missing.code, missing.complaint) == (2, "no password for ops; set TOPICS_PASSWORD")


def test_without_a_token_the_error_says_how_to_get_one(group: Invoke) -> None:
    done = group("ls", TOPICS_TOKEN="")
    assert done.code == 4
    assert "TOPICS_TOKEN" in done.complaint


def test_a_place_that_is_none_is_refused(group: Invoke) -> None:
    assert "--to is 'there'" in group("reset", "t", "g", "--to", "there").complaint
    assert "say where to" in group("reset", "t", "g").complaint
