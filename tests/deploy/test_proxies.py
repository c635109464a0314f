"""nginx and Caddy with the files of deploy/proxy: requests, streams and large bodies pass to a real server."""

import contextlib
import http.client
import json
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.parts import DEPLOY, needs, program
from tests.live.rig import eventually
from tests.live.test_proxy import answers
from tests.patience import PATIENCE_S
from tests.serving import ServerProcess, free_port, serving

NAME = "topics.example.org"
pytestmark = needs("nginx", "caddy", "openssl")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Without keys a server answers only to names that it is told: Caddy and nginx pass the name on."""
    with serving(tmp_path_factory.mktemp("data"), allowed_hosts=NAME) as server:
        yield server


def certificate(folder: Path) -> None:
    subject = ["-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}"]
    files = ["-keyout", folder / "topics.key", "-out", folder / "topics.pem"]
    make = [program("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files]
    subprocess.run(make, check=True, capture_output=True)


@contextlib.contextmanager
def started(command: list[str], port: int, folder: Path) -> Iterator[int]:
    with (folder / "proxy.log").open("wb") as log:
        env = {
            "HOME": str(folder),
            "PATH": "/usr/bin:/bin",
            "XDG_DATA_HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder),
        }
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=env)
    try:
        eventually(lambda: answers(port) or process.poll() is not None)
        assert process.poll() is None, (folder / "proxy.log").read_text()
        yield port
    finally:
        # Caddy would wait for streams that are still open.
        process.kill()
        process.wait()


@contextlib.contextmanager
def nginx(server: ServerProcess, folder: Path) -> Iterator[int]:
    certificate(folder)
    port = free_port()
    site = (DEPLOY / "proxy" / "nginx.conf").read_text()
    site = site.replace("127.0.0.1:4000", f"127.0.0.1:{server.port}").replace("listen 443", f"listen 127.0.0.1:{port}")
    (folder / "site.conf").write_text(site.replace("/etc/ssl", str(folder)))
    paths = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in ("fastcgi", "uwsgi", "scgi", "proxy"))
    (folder / "nginx.conf").write_text(
        f"daemon off;\npid {folder}/pid;\nerror_log {folder}/error.log;\nevents {{}}\n"
        f"http {{\naccess_log off;\nclient_body_temp_path {folder}/body;\n{paths}include {folder}/site.conf;\n}}\n"
    )
    command = [program("nginx"), "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
    with started(command, port, folder) as port:
        yield port


@contextlib.contextmanager
def caddy(server: ServerProcess, folder: Path) -> Iterator[int]:
    """With a certificate of its own making: here is no authority that could be asked for one."""
    port, plain, admin = free_port(), free_port(), free_port()
    site = (DEPLOY / "proxy" / "Caddyfile").read_text().replace("127.0.0.1:4000", f"127.0.0.1:{server.port}")
    options = f"admin 127.0.0.1:{admin}\nhttp_port {plain}\nhttps_port {port}\nlocal_certs\nskip_install_trust\n"
    (folder / "Caddyfile").write_text(f"{{\n{options}default_bind 127.0.0.1\n}}\n{site}")
    command = [program("caddy"), "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]
    with started(command, port, folder) as port:
        yield port


@pytest.fixture(params=[nginx, caddy], ids=lambda start: start.__name__)
def port(request: pytest.FixtureRequest, server: ServerProcess, tmp_path: Path) -> Iterator[int]:
    with request.param(server, tmp_path) as port:
        yield port


class NamedConnection(http.client.HTTPSConnection):
    """Asks for the name of the site, wherever it is."""

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self.sock = context.wrap_socket(self.sock, server_hostname=NAME)


def test_requests_large_bodies_and_streams_pass(port: int) -> None:
    with contextlib.closing(NamedConnection("127.0.0.1", port, timeout=PATIENCE_S)) as connection:
        eventually(lambda: asked(connection, "GET", "/v0/ready")[0] == 200)
        body = json.dumps({"records": [{"data": "x" * 900_000}] * 20})
        status, reply = asked(connection, "POST", f"/v0/topics/large-{port}", body)
        assert (status, json.loads(reply)["last_seq"]) == (201, 20)
        live = f"/v0/topics/live-{port}"
        asked(connection, "POST", live, '{"records": [{"data": "first"}]}')
        with contextlib.closing(NamedConnection("127.0.0.1", port, timeout=PATIENCE_S)) as stream:
            stream.request("GET", f"{live}/stream", headers={"Host": NAME, "Accept": "text/event-stream"})
            found = stream.getresponse()
            assert found.status == 200
            assert any(b"first" in line for line in iter(found.readline, b""))
            asked(connection, "POST", live, '{"records": [{"data": "second"}]}')
            assert any(b"second" in line for line in iter(found.readline, b""))


def asked(connection: NamedConnection, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
    connection.request(method, path, body, {"Host": NAME, "Content-Type": "application/json"})
    reply = connection.getresponse()
    return reply.status, reply.read()
