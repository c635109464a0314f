"""`topics serve` over TLS: what starts, what does not, SIGHUP, and the product's own clients against it."""

import asyncio
import contextlib
import os
import pty
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.certificates import Authority
from tests.deploy.parts import ROOT
from tests.launching import run
from tests.patience import PATIENCE_S
from tests.serving import TOPICS, ServerProcess, serving
from topics.client import AsyncClient, Client, ConnectionFailed, InvalidRequest
from topics.http.tls.certificate import TlsFiles


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def pair(authority: Authority) -> TlsFiles:
    return authority.pair()


@pytest.fixture(scope="module")
def server(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    files = authority.pair()
    directory = tmp_path_factory.mktemp("tls")
    with serving(directory, tls_cert=files.certificate, tls_key=files.key, api_keys="k3y") as server:
        yield server


def url_of(server: ServerProcess) -> str:
    return f"https://localhost:{server.port}"


def refusal(data_dir: Path, **settings: object) -> str:
    """What `topics serve` says before it exits with 2."""
    server = ServerProcess(data_dir, **settings)
    assert server.exit_code() == 2, server.log
    assert not (data_dir / "meta.json").exists()
    return server.log


# --- the start ---


def test_a_pair_that_is_missing_stops_the_start(tmp_path: Path, pair: TlsFiles) -> None:
    said = refusal(tmp_path / "d", tls_cert=tmp_path / "none.pem", tls_key=pair.key)
    assert f"cannot read {tmp_path}/none.pem: no such file" in said


@pytest.mark.parametrize("given", ["tls_cert", "tls_key", "tls_client_ca"])
def test_half_a_pair_stops_the_start(tmp_path: Path, authority: Authority, pair: TlsFiles, given: str) -> None:
    path = {"tls_cert": pair.certificate, "tls_key": pair.key, "tls_client_ca": authority.file}[given]
    said = refusal(tmp_path / "d", **{given: path})
    assert f"TOPICS_{given.upper()} is set, but TOPICS_TLS_" in said


def test_a_pair_that_cannot_be_read_stops_the_start(tmp_path: Path, pair: TlsFiles) -> None:
    assert f"cannot read {tmp_path}: is a directory" in refusal(tmp_path / "d", tls_cert=tmp_path, tls_key=pair.key)


def test_an_expired_pair_stops_the_start(tmp_path: Path, authority: Authority) -> None:
    old = authority.pair(days=-1)
    assert f"{old.certificate} has expired" in refusal(tmp_path / "d", tls_cert=old.certificate, tls_key=old.key)


def test_a_pair_of_the_future_stops_the_start(tmp_path: Path, authority: Authority) -> None:
    early = authority.pair(days=400)
    said = refusal(tmp_path / "d", tls_cert=early.certificate, tls_key=early.key)
    assert f"{early.certificate} is not valid yet" in said


def test_a_key_of_another_certificate_stops_the_start(tmp_path: Path, authority: Authority, pair: TlsFiles) -> None:
    other = authority.pair()
    said = refusal(tmp_path / "d", tls_cert=pair.certificate, tls_key=other.key)
    assert f"the key {other.key} does not belong to {pair.certificate}" in said


@pytest.mark.parametrize("setting", ["tls_cert", "tls_key", "tls_client_ca"])
def test_a_file_that_is_not_pem_stops_the_start(tmp_path: Path, pair: TlsFiles, setting: str) -> None:
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no certificate\n")
    given: dict[str, Any] = {"tls_cert": pair.certificate, "tls_key": pair.key, setting: garbage}
    said = refusal(tmp_path / "d", **given)
    assert "garbage.pem" in said
    assert "PEM" in said


def test_files_that_are_swapped_are_named(tmp_path: Path, pair: TlsFiles) -> None:
    said = refusal(tmp_path / "d", tls_cert=pair.key, tls_key=pair.certificate)
    assert f"{pair.key} has no certificate in PEM" in said


def test_an_encrypted_key_stops_the_start_and_asks_nobody(tmp_path: Path, pair: TlsFiles) -> None:
    locked = tmp_path / "locked.pem"
    locked.write_text(LOCKED_KEY)
    assert "is encrypted" in refusal(tmp_path / "d", tls_cert=pair.certificate, tls_key=locked)


# A key of nothing, under the password "secret".
LOCKED_KEY = """\
-----BEGIN EC PRIVATE KEY-----
Proc-Type: 4,ENCRYPTED
DEK-Info: AES-128-CBC,00112233445566778899AABBCCDDEEFF

aGVsbG8gd29ybGQhIQ==
-----END EC PRIVATE KEY-----
"""


def test_beyond_loopback_without_tls_is_said_loudly_and_with_it_is_not(tmp_path: Path, pair: TlsFiles) -> None:
    with serving(tmp_path / "plain", host="0.0.0.0", api_keys="k") as plain:
        assert re.search("WARNING .*NO TLS: ", plain.log)
    with serving(tmp_path / "plain", host="0.0.0.0", api_keys="k", tls_cert=pair.certificate, tls_key=pair.key) as tls:
        assert "NO TLS" not in tls.log
        assert re.search(r"TLS: the certificate is valid for (89|90) more days", tls.log)
    with serving(tmp_path / "plain") as local:
        assert "NO TLS" not in local.log


def test_beyond_loopback_without_keys_is_refused_with_tls_too(tmp_path: Path, pair: TlsFiles) -> None:
    said = refusal(tmp_path / "d", host="0.0.0.0", tls_cert=pair.certificate, tls_key=pair.key)
    assert "without keys" in said


# --- SIGHUP ---


def peer_certificate(server: ServerProcess, authority: Authority) -> bytes:
    """What a new connection is shown."""
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as plain,
        authority.trusting().wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        shown = secured.getpeercert(binary_form=True)
        assert shown is not None
        return shown


def replace(files: TlsFiles, by: TlsFiles) -> None:
    for old, new in zip(files[:2], by[:2], strict=True):
        assert old is not None
        assert new is not None
        Path(old).write_bytes(Path(new).read_bytes())


def test_sighup_takes_a_new_pair_and_drops_no_connection(tmp_path: Path, authority: Authority, pair: TlsFiles) -> None:
    with serving(tmp_path, tls_cert=pair.certificate, tls_key=pair.key) as server:
        before = peer_certificate(server, authority)
        with (
            socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as plain,
            authority.trusting().wrap_socket(plain, server_hostname="localhost") as old,
        ):
            old.sendall(b"POST /v0/topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
            replace(pair, authority.pair())
            server.process.send_signal(signal.SIGHUP)
            server.wait_for_log("the certificate was read again")
            assert peer_certificate(server, authority) != before
            # the request that was under way, and another one
            for rest in (b"", b"POST /v0/topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"):
                old.sendall(rest + b'Content-Length: 26\r\n\r\n{"records":[{"data": 12}]}')
                assert old.recv(10_000).startswith(b"HTTP/1.1 20")


def test_a_bad_pair_on_sighup_keeps_the_old_one_and_is_logged(
    tmp_path: Path, authority: Authority, pair: TlsFiles
) -> None:
    with serving(tmp_path, tls_cert=pair.certificate, tls_key=pair.key) as server:
        before = peer_certificate(server, authority)
        replace(pair, authority.pair(days=-3))
        server.process.send_signal(signal.SIGHUP)
        found = server.wait_for_log(r"ERROR .*the certificate was not replaced: .* has expired")
        assert pair.certificate in found[0]
        assert peer_certificate(server, authority) == before
        replace(pair, authority.pair())
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_log("the certificate was read again")
        assert peer_certificate(server, authority) != before


def test_sighup_without_a_certificate_is_survived(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        server.ready().process.send_signal(signal.SIGHUP)
        server.wait_for_log("SIGHUP: there is no certificate to read again")
        assert server.client().get("/v0/ready").status == 200


@pytest.mark.slow
def test_a_closed_terminal_ends_a_server_in_it_cleanly(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TOPICS_PORT": "0", "TOPICS_DATA_DIR": str(tmp_path)}
    process = subprocess.Popen([TOPICS, "serve"], stderr=theirs, stdout=theirs, env=environ)
    os.close(theirs)
    try:
        said = b""
        while b" ready: " not in said:
            said += os.read(ours, 10_000)
        process.send_signal(signal.SIGHUP)
        assert process.wait(PATIENCE_S) == 0
        assert b"stopped" in os.read(ours, 10_000)
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        os.close(ours)


# --- clients ---


def test_the_client_works_with_a_custom_authority(server: ServerProcess, authority: Authority) -> None:
    with Client(url_of(server), "k3y", ca_file=str(authority.file)) as client:
        assert client.append("both", {"n": 1}).last_seq == 1
        assert [record.data for record in client.diff("both").records] == [{"n": 1}]
        with client.socket() as socket:
            assert socket.publish("both", {"n": 2}).last_seq == 2


def test_the_asynchronous_client_works_with_a_custom_authority(server: ServerProcess, authority: Authority) -> None:
    async def use() -> int:
        async with AsyncClient(url_of(server), "k3y", ca_file=str(authority.file)) as client:
            async with client.socket() as socket:
                await socket.publish("async", 1)
            return (await client.append("async", 2)).last_seq

    assert asyncio.run(use()) == 2


def test_without_the_authority_the_client_fails_at_once_and_says_what_to_do(server: ServerProcess) -> None:
    with Client(url_of(server), "k3y") as client:
        with pytest.raises(ConnectionFailed, match="TOPICS_CA_FILE"):
            client.health()
        with pytest.raises(ConnectionFailed, match="certificate"), client.socket() as socket:
            socket.publish("t", 1)


def test_an_authority_that_cannot_be_read_is_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="ca_file"):
        Client("https://localhost:1", ca_file=str(tmp_path / "none"))


def test_commands_take_the_authority_from_the_environment(server: ServerProcess, authority: Authority) -> None:
    environ = {"TOPICS_URL": url_of(server), "TOPICS_API_KEY": "k3y", "PATH": os.environ["PATH"]}
    trusted = {**environ, "TOPICS_CA_FILE": str(authority.file)}
    assert run(["append", "cli", '{"a":1}'], trusted).returncode == 0
    assert run(["tail", "cli"], trusted).stdout.count(b'{"a":1}') == 1
    refused = run(["append", "cli", '{"a":1}'], environ)
    assert refused.returncode == 5
    assert b"TOPICS_CA_FILE" in refused.stderr


def test_http_2_is_used_by_clients_that_can(server: ServerProcess, authority: Authority) -> None:
    with httpx2.Client(http2=True, verify=authority.trusting(), base_url=url_of(server)) as client:
        reply = client.get("/v0/health")
        assert (reply.status_code, reply.http_version) == (200, "HTTP/2")


def test_plain_http_to_the_port_is_told_to_use_https(server: ServerProcess) -> None:
    reply = server.client("k3y").get("/v0/topics")
    assert (reply.status, reply.code) == (400, "invalid_request")
    assert "the URL begins with https://" in reply.json["error"]["message"]
    with (
        Client(f"http://127.0.0.1:{server.port}", "k3y") as client,
        pytest.raises(InvalidRequest, match="serves HTTPS"),
    ):
        client.append("t", 1)


def test_bytes_that_are_neither_tls_nor_http_are_not_answered(server: ServerProcess) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as plain:
        plain.sendall(b"\x00\x01\x02 what is this?\r\n\r\n")
        assert b"HTTP" not in plain.recv(1000)


# --- certificates of clients ---


def test_with_an_authority_for_clients_others_cannot_connect(tmp_path: Path, authority: Authority) -> None:
    files, mine = authority.pair(), authority.pair(name="worker-1")
    stranger = Authority(made(tmp_path / "stranger")).pair(name="worker-1")
    settings = {"tls_cert": files.certificate, "tls_key": files.key, "tls_client_ca": authority.file}
    with serving(tmp_path / "data", **settings) as server:

        def health(client_cert: Any) -> bool:
            with Client(url_of(server), ca_file=str(authority.file), client_cert=client_cert, retries_max=0) as client:
                with contextlib.suppress(ConnectionFailed):
                    return bool(client.health())
                return False

        assert health((mine.certificate, mine.key))
        assert not health(None)
        assert not health((stranger.certificate, stranger.key))
        # the check of the container, too
        check = [sys.executable, ROOT / "deploy" / "healthcheck.py"]
        environ = {"TOPICS_PORT": str(server.ready().port), "TOPICS_TLS_CERT": files.certificate}
        assert subprocess.run(check, env=environ, capture_output=True).returncode == 1
        environ |= {"TOPICS_CLIENT_CERT": mine.certificate, "TOPICS_CLIENT_KEY": mine.key}
        assert subprocess.run(check, env=environ).returncode == 0


def made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def test_metrics_tell_when_the_certificate_expires(server: ServerProcess, authority: Authority) -> None:
    context = authority.trusting()
    with httpx2.Client(verify=context, base_url=url_of(server), headers={"Authorization": "Bearer k3y"}) as client:
        text = client.get("/v0/metrics").text
    assert isinstance(context, ssl.SSLContext)
    found = re.search(r"^topics_tls_certificate_expiry_seconds (\S+)", text, re.MULTILINE)
    assert found is not None
    assert float(found[1]) > 1_700_000_000
    assert re.search(r"^topics_tls_handshakes_total [1-9]", text, re.MULTILINE)
