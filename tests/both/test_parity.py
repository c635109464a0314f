"""Every verb of the client is a verb of an embedded database, with the same arguments."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys
from typing import Any

import pytest

import topics
import topics.client
from topics.client import Client, errors
from topics.embedded import Database
from topics.model import errors as engine_errors

# What belongs to a server, and why a database in a program does not have it.
SERVER_ONLY = {
    "health": "there is no process to ask: the program is it",
    "ready": "a database that is open is ready",
    "metrics": "counters of a server, its connections and its loop",
    "openapi": "describes HTTP",
    "login": "the owner of the directory needs no token",
    "socket": "a WebSocket; append and watch do the same here",
    "url": "there is none",
    "me": "whoever has the directory may do everything",
    "traces": "of requests, which a database in the same process does not make",
    "promote": "there is no other one to take over from",
    "roles": "there is one",
    "compact": "the disk of a server; closing a database writes its last checkpoint",
    "overview": "what needs attention at a server",
    "server": "the program has its settings",
    "export_arrow": "the reply of a server; polars and others read the lines of `export`",
    "history": "the past of a server's own metrics",
    "queue_history": "the past of a server's queues",
    "readers": "connections that follow a topic",
    **dict.fromkeys(
        (
            *("put_webhook", "webhook", "webhooks", "rotate_webhook"),
            *("resume_webhook", "test_webhook", "drop_webhook"),
        ),
        "the program has the records and can send them; webhooks of a directory are kept for a server",
    ),
}
# The same name for the same purpose, in a form of its own.
OWN_FORM = {"backup": "writes a file instead of giving out the pieces of one"}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_every_verb_of_the_client_is_there_or_has_a_reason() -> None:
    assert public(Client) - public(Database) == set(SERVER_ONLY)
    assert set(OWN_FORM) <= public(Client) & public(Database)


@pytest.mark.parametrize("name", sorted((public(Client) & public(Database)) - set(OWN_FORM)))
def test_a_verb_takes_what_the_clients_verb_takes(name: str) -> None:
    theirs = inspect.signature(getattr(Client, name)).parameters
    ours = inspect.signature(getattr(Database, name)).parameters
    assert list(ours) == list(theirs)
    for parameter in theirs:
        assert (ours[parameter].default, ours[parameter].kind) == (theirs[parameter].default, theirs[parameter].kind)


def test_the_package_shows_how_to_begin() -> None:
    assert {"open", "Client", "Database", "TopicNotFound"} <= set(dir(topics))
    assert set(topics.__all__) <= set(dir(topics))
    for name in topics.__all__:
        assert getattr(topics, name) is not None
    with pytest.raises(AttributeError):
        topics.no_such_name  # noqa: B018


def test_importing_the_package_imports_nothing_else() -> None:
    code = "import sys, topics; dir(topics); print([m for m in sys.modules if m.startswith(('topics.', 'msgspec'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_package_lists_what_it_offers_and_nothing_else() -> None:
    offered = [
        name for name in dir(topics) if not name.startswith("_") and not isinstance(vars(topics).get(name), type(sys))
    ]
    assert sorted(offered) == sorted(name for name in topics.__all__ if not name.startswith("_"))


def test_a_client_leaves_the_log_to_the_program() -> None:
    code = (
        "import logging, topics\n"
        "logging.basicConfig(level=logging.INFO)\n"
        "{before}\n"
        "topics.Client('http://127.0.0.1:1')\n"
        "print(logging.getLevelName(logging.getLogger('httpx2').getEffectiveLevel()))"
    )
    for before, level in (("", "WARNING"), ("logging.getLogger('httpx2').setLevel('DEBUG')", "DEBUG")):
        run = [sys.executable, "-c", code.format(before=before)]
        assert subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip() == level


def test_a_database_needs_no_http() -> None:
    code = (
        "import sys, tempfile, topics\n"
        "with tempfile.TemporaryDirectory() as path, topics.open(path) as db:\n"
        "    db.append('a', 1); list(db.read('a')); db.consume('a', 'g', start='Earliest')\n"
        "    next(db.watch('a')); list(db.export('a'))\n"
        "unwanted = {'httpx2', 'httptools', 'h2', 'uvloop', 'asyncio', 'prometheus_client'}\n"
        "print(sorted(unwanted & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def is_error(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, engine_errors.TopicsError)


def test_an_error_is_one_class_for_the_server_the_client_and_a_database() -> None:
    kinds: list[Any] = [
        kind for kind in vars(engine_errors).values() if is_error(kind) and kind is not topics.TopicsError
    ]
    assert len(kinds) > 30
    for kind in kinds:
        assert getattr(errors, kind.__name__, kind) is kind
        assert getattr(topics.client, kind.__name__, kind) is kind
        assert getattr(topics, kind.__name__, kind) is kind
        assert issubclass(kind, errors.KINDS.get(kind.code, errors.TopicsError))


def test_an_error_of_a_server_is_kept_whole_by_copying_and_pickling() -> None:
    told = errors.error_of("topic_not_found", "no topic here", 404, {"topic": "t"}, 2.5)
    for found in (told, copy.copy(told), pickle.loads(pickle.dumps(told))):
        assert type(found) is topics.TopicNotFound
        assert (str(found), found.message, found.code) == ("no topic here", "no topic here", "topic_not_found")
        assert (found.status, found.detail, found.retry_after_s) == (404, {"topic": "t"}, 2.5)


def test_an_error_of_a_database_says_when_to_try_again_as_one_of_a_server_does() -> None:
    assert engine_errors.Throttled("wait", retry_after_ms=1500).retry_after_s == 1.5
    assert (engine_errors.TopicNotFound("t").status, engine_errors.TopicNotFound("t").retry_after_s) == (0, None)
