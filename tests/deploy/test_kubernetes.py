"""The Kubernetes manifests: valid by the schemas of Kubernetes, and in agreement with the image and the server."""

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from tests.deploy.image import steps
from tests.deploy.parts import DEPLOY, IN_CI, ROOT
from topics.model.setting_types import WrongSetting
from topics.model.settings import load_settings

# The schemas are those of the wheel kubernetes-validate, which `make` downloads and nobody installs: 17,000 files.
SCHEMAS = ROOT / ".venv" / "kubernetes-schemas"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yml"))
OBJECTS = [made for path in MANIFESTS for made in yaml.safe_load_all(path.read_text())]
IN_KUBERNETES = [made for made in OBJECTS if made["kind"] != "ServiceMonitor"]


def object_of(kind: str) -> Any:
    (found,) = [made for made in OBJECTS if made["kind"] == kind]
    return found


class Schemas:
    """The newest version of Kubernetes in the wheel, fields that it does not know refused."""

    def __init__(self, wheel: Path) -> None:
        with zipfile.ZipFile(wheel) as archive:
            files = [name for name in archive.namelist() if name.endswith("-local-strict/_definitions.json")]
            newest = max(files, key=lambda name: [int(part) for part in re.findall(r"\d+", name)])
            self._definitions = json.loads(archive.read(newest))["$defs"]

    def errors(self, made: Any) -> list[str]:
        group, _, version = made["apiVersion"].rpartition("/")
        kind = f"#/$defs/io.k8s.api.{group or 'core'}.{version}.{made['kind']}"
        validator = jsonschema_rs.Draft7Validator({"$ref": kind, "$defs": self._definitions})
        return [error.message for error in validator.iter_errors(made)]


@pytest.fixture(scope="module")
def schemas() -> Schemas:
    wheels = sorted(SCHEMAS.glob("kubernetes_validate-*.whl"))
    if not wheels and not IN_CI:
        pytest.skip(f"there are no schemas in {SCHEMAS} (make test downloads them)")
    return Schemas(wheels[-1])


@pytest.mark.slow
@pytest.mark.parametrize("made", IN_KUBERNETES, ids=lambda made: made["kind"])
def test_an_object_fits_its_schema(made: Any, schemas: Schemas) -> None:
    assert schemas.errors(made) == []


@pytest.mark.slow
def test_a_misspelt_field_does_not(schemas: Schemas) -> None:
    made = yaml.safe_load(yaml.safe_dump(object_of("StatefulSet")))
    made["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    assert schemas.errors(made)


# Of the operator's own kind only what is used here: its schema is not in the registries that CI reaches.
SERVICE_MONITOR = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "monitoring.coreos.com/v1"},
        "spec": {
            "type": "object",
            "required": ["selector", "endpoints"],
            "additionalProperties": False,
            "properties": {
                "jobLabel": {"type": "string"},
                "selector": {"type": "object", "required": ["matchLabels"]},
                "endpoints": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "required": ["port"],
                        "additionalProperties": False,
                        "properties": {
                            "port": {"type": "string"},
                            "path": {"type": "string"},
                            "interval": {"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"},
                            "authorization": {
                                "type": "object",
                                "additionalProperties": False,
                                "properties": {
                                    "type": {"type": "string"},
                                    "credentials": {"type": "object", "required": ["name", "key"]},
                                },
                            },
                        },
                    },
                },
            },
        },
    },
}


def test_the_service_monitor_scrapes_the_service_under_the_name_that_the_alerts_expect() -> None:
    monitor, service = object_of("ServiceMonitor"), object_of("Service")
    assert list(jsonschema_rs.Draft7Validator(SERVICE_MONITOR).iter_errors(monitor)) == []
    labels = service["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert labels[monitor["spec"]["jobLabel"]] == "topics"
    (endpoint,) = monitor["spec"]["endpoints"]
    assert (endpoint["port"], endpoint["path"]) == (service["spec"]["ports"][0]["name"], "/v0/metrics")


def test_the_pod_fits_the_image() -> None:
    image = {step.verb: step.rest for step in steps((ROOT / "Dockerfile").read_text())}
    pod = object_of("StatefulSet")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    user = f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"
    assert user == image["USER"]
    assert container["ports"][0]["containerPort"] == int(image["EXPOSE"])
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == [image["VOLUME"]]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert object_of("StatefulSet")["spec"]["replicas"] == 1


def test_what_kubernetes_tells_pods_about_services_is_not_taken_for_a_setting() -> None:
    """A pod gets NAME_PORT=tcp://… for each Service of its namespace, and TOPICS_PORT is a setting of the server."""
    links = {f"{object_of('Service')['metadata']['name'].upper()}_PORT": "tcp://10.0.0.1:4000"}
    if object_of("StatefulSet")["spec"]["template"]["spec"].get("enableServiceLinks", True):
        load_settings({}, links)
    with pytest.raises(WrongSetting, match="`enableServiceLinks: false` in the pod prevents that"):
        load_settings({}, links)
