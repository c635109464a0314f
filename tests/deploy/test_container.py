"""The Dockerfile: every step of the server's image is run, and what it makes serves, drains and starts again."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.image import Container, Image, Stage, running
from tests.deploy.parts import ROOT, needs, program
from tests.live.rig import eventually
from tests.patience import PATIENCE_S
from tools.compiled import OBJECTS

KEYS = {"TOPICS_ADMIN_KEY": "secret-of-the-owner", "TOPICS_METRICS_KEY": "secret-of-prometheus"}
COMPOSE: Any = yaml.safe_load((ROOT / "compose.yml").read_text())

pytestmark = [*needs("unshare", "nsenter", "ip", "prometheus", "curl"), pytest.mark.timeout(1800)]
if os.geteuid() != 0:
    pytestmark.append(pytest.mark.skip(reason="only root can mount an overlay"))


def filled(text: str) -> str:
    """What compose does with `${NAME:?…}`."""
    return re.sub(r"\$\{(\w+)(:\?[^}]*)?\}", lambda found: KEYS[found[1]], text)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """The image of the server, as the file makes it: mypyc runs, with nothing installed but what the file installs.

    What it writes in C is compiled by the C compiler unless `make fast` has compiled the same.
    """
    objects = ROOT / OBJECTS
    given = {f"/src/{OBJECTS}": objects} if objects.is_dir() else {}
    return Image(ROOT, tmp_path_factory.mktemp("image"), "server", {}, {"build": given}).stage


@pytest.fixture
def server(stage: Stage, tmp_path: Path) -> Iterator[Container]:
    """As compose.yml starts it."""
    with running(stage, tmp_path / "server", volumes(stage, tmp_path), environment("topics")) as container:
        eventually(container.healthy)
        yield container


def environment(service: str) -> dict[str, str]:
    return {name: filled(value) for name, value in COMPOSE["services"][service]["environment"].items()}


def volumes(stage: Stage, folder: Path) -> dict[str, Path]:
    assert stage.volumes == [COMPOSE["services"]["topics"]["volumes"][0].split(":")[1]]
    return dict.fromkeys(stage.volumes, folder / "volume")


def topics(container: Container, *arguments: str) -> str:
    done = container.run("topics", *arguments, TOPICS_API_KEY=KEYS["TOPICS_ADMIN_KEY"])
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_image_has_the_compiled_modules(server: Container) -> None:
    assert topics(server, "--version").rstrip().endswith("(compiled)")
    health = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:4000/v0/health').read().decode())"
    assert '"variant":"compiled"' in server.run("python3", "-c", health).stdout


def test_the_container_serves_as_nobody_writes_only_its_volume_and_keeps_it(
    stage: Stage, server: Container, tmp_path: Path
) -> None:
    assert "repository" not in topics(server, "--version")
    topics(server, "append", "visits", '{"page": "/"}')
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    assert re.search(r"^Uid:\t10001\t10001\t10001\t10001$", status, re.MULTILINE)
    assert "Read-only file system" in server.run("touch", "/opt/topics/x").stderr
    assert server.run("touch", "/var/lib/topics/x").returncode == 0
    # The place of the repository is covered: at most an empty directory is left of it.
    assert server.run("test", "-e", str(ROOT / "pyproject.toml")).returncode == 1

    server.process.send_signal(signal.Signals[stage.stop_signal])
    assert server.process.wait(timeout=PATIENCE_S) == 0
    assert "stopped" in (tmp_path / "server" / "log").read_text()
    with running(stage, tmp_path / "again", volumes(stage, tmp_path), environment("topics")) as again:
        eventually(again.healthy)
        assert '{"page": "/"}' in topics(again, "tail", "visits")


def test_without_keys_it_does_not_start(stage: Stage, tmp_path: Path) -> None:
    with running(stage, tmp_path / "server", volumes(stage, tmp_path), {}) as container:
        assert container.process.wait(timeout=PATIENCE_S) == 2
    assert "TOPICS_API_KEYS" in (tmp_path / "server" / "log").read_text()


def test_prometheus_scrapes_it_as_compose_sets_it_up(stage: Stage, server: Container, tmp_path: Path) -> None:
    """Its own program from apt, with the mounts, the secret and the command of compose.yml, and its host names."""
    service = COMPOSE["services"]["prometheus"]
    places = Stage(tmp_path / "prometheus", None)
    etc = places.upper / "etc" / "prometheus"
    etc.mkdir(parents=True)
    (places.upper / "etc" / "hosts").write_text("127.0.0.1 localhost topics prometheus\n")
    for volume in service["volumes"][:2]:
        source, target, _ = volume.split(":")
        (places.upper / Path(target).relative_to("/")).write_text((ROOT / source).read_text())
    (secret,) = service["secrets"]
    key = KEYS[COMPOSE["secrets"][secret["source"]]["environment"]]
    (places.upper / Path(secret["target"]).relative_to("/")).write_text(key)
    (places.upper / "prometheus").mkdir()
    start = f'{places.mounts(tmp_path / "merged")}\nexec chroot {tmp_path / "merged"} /usr/bin/prometheus "$@"'
    network = [program("nsenter"), "--target", str(server.process.pid), "--net", "--"]
    command = [*network, program("unshare"), "--mount", "/bin/bash", "-c", start, "prometheus", *service["command"]]
    scraper = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        ask = "http://127.0.0.1:9090/api/v1/query?query=topics_ready%3D%3D1"

        def scraped() -> bool:
            reply = subprocess.run([*network, program("curl"), "-s", ask], capture_output=True, text=True).stdout
            return '"job":"topics"' in reply

        eventually(scraped)
    finally:
        scraper.kill()
        scraper.wait()
