"""Keys: their syntax, and that nothing doubtful is granted."""

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.api.auth import (
    SCOPES,
    KeyAuthenticator,
    OpenAuthenticator,
    Scope,
    authenticator_of,
    is_loopback,
    parse_keys,
)
from topics.model.errors import Forbidden, Unauthorized
from topics.model.setting_types import WrongSetting
from topics.model.settings import Settings

ALL = int(Scope.ALL)


@pytest.mark.parametrize(
    ("entry", "scopes", "prefixes"),
    [
        ("key", ALL, ("",)),
        ("key:", ALL, ("",)),
        ("key::", ALL, ("",)),
        ("key:read", Scope.READ, ("",)),
        ("key:r+w", Scope.READ | Scope.WRITE, ("",)),
        ("key:rw", Scope.READ | Scope.WRITE, ("",)),
        ("key:rw+d+a", ALL, ("",)),
        ("key:read+read", Scope.READ, ("",)),
        ("key::tenant42:|shared.", ALL, ("tenant42:", "shared.")),
        ("key:admin:a:b:c", Scope.ADMIN, ("a:b:c",)),
    ],
)
def test_an_entry_is_secret_scopes_and_prefixes(entry: str, scopes: int, prefixes: tuple[str, ...]) -> None:
    (key,) = parse_keys([entry])
    assert (key.scopes, key.prefixes) == (int(scopes), prefixes)
    assert key.digest == hashlib.sha256(b"key").digest()


@pytest.mark.parametrize(
    "entry", ["", ":", ":read", "k:x", "k:read+", "k:+read", "k:Read", "k: read", "k:read:a||b", "k::|"]
)
def test_a_doubtful_entry_is_refused_without_showing_it(entry: str) -> None:
    with pytest.raises(WrongSetting) as caught:
        parse_keys(["fine", entry.replace("k", "s3cret")])
    assert "entry 2" in caught.value.message
    assert "s3cret" not in caught.value.message


def test_the_same_secret_twice_is_refused() -> None:
    with pytest.raises(WrongSetting):
        parse_keys(["k:read", "k:write"])


@given(st.lists(st.text(st.characters(exclude_characters=":", exclude_categories=["Cs"]), min_size=1), unique=True))
def test_every_key_is_found_by_its_secret_and_no_other(endings: list[str]) -> None:
    secrets = [f"k{ending}" for ending in endings]
    ring = KeyAuthenticator(parse_keys(secrets))
    for number, secret in enumerate(secrets, 1):
        assert ring.find(secret.encode()).number == number
        with pytest.raises(Unauthorized):
            ring.find(secret.encode() + b"\0")


def test_every_digest_is_compared_whichever_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def compare(presented: bytes, stored: bytes) -> bool:
        compared.append(stored)
        return presented == stored

    monkeypatch.setattr("topics.api.auth.hmac.compare_digest", compare)
    ring = KeyAuthenticator(parse_keys(["k1", "k2", "k3"]))
    ring.find(b"k1")
    assert len(compared) == 3


def test_a_key_keeps_a_digest_and_never_the_secret() -> None:
    (key,) = parse_keys(["s3cret:read:tenant:"])
    kept: list[Any] = [getattr(key, name) for name in dir(key) if not name.startswith("__")]
    assert not any("s3cret" in repr(value) for value in kept)


@given(st.lists(st.text("ab:.", min_size=1, max_size=3), min_size=1), st.text("ab:.", max_size=5))
def test_a_name_is_allowed_exactly_if_it_starts_with_a_prefix(prefixes: list[str], name: str) -> None:
    (key,) = parse_keys(["k::" + "|".join(prefixes)])
    allowed = any(name.encode().startswith(prefix.encode()) for prefix in prefixes)
    if allowed:
        key.check_name(name, "topic")
    else:
        with pytest.raises(Forbidden):
            key.check_name(name, "topic")


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.8.9.1", "::1", "localhost", "LOCALHOST", "localhost.", "x.localhost"]
)
def test_loopback_names(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["", "0.0.0.0", "::", "10.0.0.1", "localhost.example", "127.0.0.1.nip.io", "1270.0.0.1"]
)
def test_names_that_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_the_door_follows_the_settings() -> None:
    assert isinstance(authenticator_of(Settings(api_keys=("k",), host="0.0.0.0")), KeyAuthenticator)
    assert isinstance(authenticator_of(Settings()), OpenAuthenticator)
    assert isinstance(authenticator_of(Settings(host="0.0.0.0", allow_insecure_no_auth=True)), OpenAuthenticator)
    with pytest.raises(WrongSetting, match="TOPICS_ALLOW_INSECURE_NO_AUTH"):
        authenticator_of(Settings(host="0.0.0.0"))


@pytest.mark.parametrize("host", [b"localhost", b"127.0.0.1:4000", b"[::1]", b"[::1]:4000"])
def test_a_server_without_keys_serves_a_host_that_is_loopback(host: bytes) -> None:
    OpenAuthenticator((), guarded=True).check_origin({b"host": host})


@pytest.mark.parametrize("host", [b"evil.com", b"[::1", b"[::1]evil.com", b"[", b"[]", b"::1]"])
def test_a_server_without_keys_refuses_a_host_that_is_not_quite_loopback(host: bytes) -> None:
    with pytest.raises(Forbidden):
        OpenAuthenticator((), guarded=True).check_origin({b"host": host})


@pytest.mark.parametrize("word", [*SCOPES, "READ", "r+w", "read+write"])
@pytest.mark.parametrize("rest", ["", ":read", ":r:mine."])
def test_a_key_that_is_named_like_a_scope_is_a_comma_where_a_plus_was_meant(word: str, rest: str) -> None:
    with pytest.raises(WrongSetting, match=r"entry 2 is named like a scope; scopes are joined by \+"):
        parse_keys(["k:read", f"{word}{rest}"])


@pytest.mark.parametrize("key", ["reads", "read+x", "writer", "x", "read-write"])
def test_other_words_are_keys(key: str) -> None:
    assert len(parse_keys([key])) == 1
