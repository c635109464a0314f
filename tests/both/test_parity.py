"""Every verb of the client is a verb of an embedded database, with the same arguments."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest

import topics
from topics.client import Client, errors
from topics.embedded import Database
from topics.embedded.errors import raised
from topics.model import errors as engine_errors

# What belongs to a server, and why a database in a program does not have it.
SERVER_ONLY = {
    "health": "there is no process to ask: the program is it",
    "ready": "a database that is open is ready",
    "metrics": "counters of a server, its connections and its loop",
    "openapi": "describes HTTP",
    "login": "whoever has the directory needs no token",
    "socket": "a WebSocket; append and watch do the same here",
    "url": "there is none",
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


def test_an_error_is_what_the_client_raises_and_what_the_engine_raised() -> None:
    kinds: list[Any] = [kind for kind in vars(engine_errors).values() if is_error(kind)]
    assert len(kinds) > 20
    for kind in kinds:
        found = raised(kind("x"))
        assert (found.code, found.message) == (kind.code, kind("x").message)
        assert isinstance(found, errors.TopicsError)
        assert isinstance(found, errors.KINDS.get(kind.code, errors.TopicsError))
        if kind.code in errors.KINDS:
            assert isinstance(found, kind)
    assert issubclass(errors.TopicsError, topics.TopicsError)
