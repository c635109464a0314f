"""The OpenAPI document: complete, and true against a live server."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.serving import Client, serving
from topics.model.requests.records import DIFF_BYTES_DEFAULT

EXAMPLES = 20
SLOW = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)
SUMMARY = {
    ("put", "/v0/topics/{topic}"),
    ("get", "/v0/topics/{topic}"),
    ("get", "/v0/topics"),
    ("delete", "/v0/topics/{topic}"),
    ("post", "/v0/topics/{topic}"),
    ("post", "/v0/topics/{topic}/diff"),
    ("post", "/v0/topics/{topic}/delete"),
    ("get", "/v0/health"),
    ("get", "/healthz"),
    ("get", "/v0/ready"),
    ("get", "/readyz"),
    ("get", "/v0/metrics"),
    ("get", "/v0/openapi.json"),
}


@pytest.fixture
def document(client: Client) -> Any:
    reply = client.get("/v0/openapi.json")
    assert reply.status == 200
    return reply.json


def operations(document: Any) -> dict[tuple[str, str], Any]:
    return {(method, path): item for path, methods in document["paths"].items() for method, item in methods.items()}


def test_every_route_is_described(document: Any) -> None:
    assert document["openapi"] == "3.1.0"
    assert set(operations(document)) >= SUMMARY


def test_every_described_route_is_served(client: Client, document: Any, topic: str) -> None:
    nowhere = client.get("/v0/no/such/path").json["error"]["message"]
    for method, path in operations(document):
        reply = client.request(method.upper(), re.sub(r"{\w+}", topic, path))
        assert reply.status != 405
        assert reply.status != 404 or reply.json["error"]["message"] != nowhere


def test_references_lead_somewhere(document: Any) -> None:
    def references(value: Any) -> list[str]:
        match value:
            case dict():
                found = [value["$ref"]] if "$ref" in value else []
                return found + [name for part in value.values() for name in references(part)]
            case list():
                return [name for part in value for name in references(part)]
            case _:
                return []

    found = set(references(document))
    assert "#/components/schemas/AppendRequest" in found
    assert all(name.removeprefix("#/components/schemas/") in document["components"]["schemas"] for name in found)


def test_bodies_are_the_structs_that_handlers_decode_with(document: Any) -> None:
    append = operations(document)["post", "/v0/topics/{topic}"]
    assert append["requestBody"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/AppendRequest"
    }
    assert append["requestBody"]["required"] is True
    diff = operations(document)["post", "/v0/topics/{topic}/diff"]
    assert diff["requestBody"]["required"] is False


def test_scopes_are_documented(document: Any) -> None:
    described = {key: item.get("security") for key, item in operations(document).items()}
    assert described["put", "/v0/topics/{topic}"] == [{"key": ["admin"]}]
    assert described["post", "/v0/topics/{topic}/diff"] == [{"key": ["read"]}]
    assert described["get", "/v0/health"] is None


def test_metrics_are_shown_in_both_forms(document: Any) -> None:
    content = operations(document)["get", "/v0/metrics"]["responses"]["200"]["content"]
    assert content["text/plain"]["schema"] == {"type": "string"}
    assert content["application/json"]["schema"]["type"] == "object"


def test_every_path_tells_that_other_methods_are_405(document: Any, client: Client, topic: str) -> None:
    for (_, path), operation in operations(document).items():
        told = operation["responses"]["405"]
        assert "Allow" in told["headers"]
        shape = "ErrorReply"
        if path.startswith("/v1/api/"):
            shape = "LoginErrorReply" if "/auth/" in path else "GroupErrorReply"
        else:
            reply = client.request("TRACE", re.sub(r"{\w+}", topic, path))
            assert (reply.status, reply.code) == (405, "method_not_allowed")
        assert told["content"]["application/json"]["schema"] == {"$ref": f"#/components/schemas/{shape}"}


def test_probes_tell_that_a_key_may_be_asked_for_and_a_host_refused(document: Any, client: Client) -> None:
    for path in ("/v0/health", "/healthz", "/v0/ready", "/readyz"):
        assert {"401", "403"} <= set(operations(document)["get", path]["responses"])
        assert client.get(path, headers={"Host": "evil.example"}).status == 403


def test_only_what_writes_may_find_the_disk_full(document: Any) -> None:
    told = {key for key, operation in operations(document).items() if "507" in operation["responses"]}
    assert {("post", "/v0/topics/{topic}"), ("post", "/v0/topics/{topic}/claim"), ("put", "/v0/topics/{topic}")} <= told
    assert {("post", "/v1/api/topics/consume"), ("post", "/v1/api/topics/ack")} <= told
    assert not {("post", "/v0/topics/{topic}/diff"), ("post", "/v0/watch"), ("post", "/v1/api/auth/login")} & told


# As the contract has them.
DEFAULTS: dict[str, dict[str, Any]] = {
    "WatchRequest": {
        "limit": 256,
        "max_batch_bytes": 262_144,
        # No include_meta: by default meta is shown if data is.
        "include_tags": False,
        "include_data": True,
        "consistency": "eventual",
        "heartbeat_ms": 15_000,
    },
    "StartRequest": {"from_seq": 0, "tail": False},
    "RouterRequest": {
        "preserve_node": True,
        "preserve_tag": True,
        "create_dest": True,
        "allow_cycle": False,
        "guarantee": "at_least_once",
        "backfill": False,
    },
    "ScheduleRequest": {"timezone": "UTC", "missed": "once", "jitter_ms": 0, "paused": False},
    "WebhookRequest": {
        "from": "head",
        "format": "record",
        "timeout_ms": 10_000,
        "concurrency": 1,
        "max_attempts": 20,
        "backoff_ms": 5_000,
        "backoff_ms_max": 3_600_000,
        "pause_after": 5,
        "paused": False,
    },
    "RotateRequest": {"grace_ms": 86_400_000},
    "ClaimRequest": {"max": 1, "wait_ms": 0},
    "AckRequest": {},
    "NackRequest": {"dead_letter": False},
    "ExtendRequest": {},
    "RedriveRequest": {"limit": 0, "rate_per_s": 0, "dry_run": False},
    "ConsumeRequest": {"start": "Latest", "limit": 100, "all_partitions": False},
    "GroupAckRequest": {"partition_id": 0},
    "GroupResetRequest": {"forget": False, "dry_run": False},
    "ResetRequest": {"all_partitions": False, "forget": False, "dry_run": False},
    "DeleteRequest": {"dry_run": False},
    "CancelRequest": {},
    "JobsRequest": {"all": False, "limit": 0, "lease_ms": 0, "rate_per_s": 0, "dry_run": False},
}
QUERY_DEFAULTS: dict[tuple[str, str], dict[str, Any]] = {
    ("post", "/v0/topics/{topic}"): {"return_seqs": True},
    ("post", "/v0/watch"): {"lenient": False},
    ("get", "/v0/topics/{topic}/work"): {"max": 1},
    ("get", "/v0/topics/{topic}/leases"): {"page_size": 100},
    ("get", "/v0/topics/{topic}/jobs"): {"page_size": 100},
    ("get", "/v0/topics/{topic}/jobs/{seq}"): {"wait_ms": 0},
    ("get", "/v0/groups"): {"page_size": 100, "lag_min": 0},
    ("get", "/v0/history"): {"since": 0},
    ("get", "/v0/server"): {"log_lines": 100},
    ("get", "/v0/routers"): {"page_size": 100},
    ("get", "/v0/schedules"): {"page_size": 100},
    ("get", "/v0/webhooks"): {"page_size": 100},
    ("get", "/v1/api/topics/groups"): {"limit": 10_000},
}


def test_fields_of_the_query_tell_their_defaults_and_whether_they_are_needed(document: Any) -> None:
    described = operations(document)
    for key, told in QUERY_DEFAULTS.items():
        shown = {each["name"]: each["schema"] for each in described[key]["parameters"]}
        assert {name: shown[name].get("default") for name in told} == told, key
    required = {
        (path, each["name"])
        for (_, path), operation in described.items()
        for each in operation.get("parameters", ())
        if each["in"] == "query" and each["required"]
    }
    assert required == {("/v0/topics/{topic}/work", "node"), ("/v0/topics/{topic}/jobs", "state")}


def test_defaults_are_what_the_server_takes_in_the_place_of_an_absent_field(
    document: Any, client: Client, topic: str
) -> None:
    def defaults(name: str) -> dict[str, Any]:
        properties = document["components"]["schemas"][name]["properties"]
        return {field: schema["default"] for field, schema in properties.items() if "default" in schema}

    assert defaults("DiffRequest") == {
        "from_seq": 0,
        "limit": 256,
        "include_tags": False,
        "include_meta": True,
        "wait_ms": 0,
        "max_batch_bytes": DIFF_BYTES_DEFAULT,
    }
    assert defaults("AppendRequest") == {"create": True, "disable_backpressure": False}
    for name, told in DEFAULTS.items():
        assert defaults(name) == told, name
    config = client.put(f"/v0/topics/{topic}", {}).json["config"]
    told = defaults("ConfigRequest")
    assert told == {name: config[name] for name in told}
    assert set(config) - set(told) == {"type", "durability", "priority", "dead_letter"}


def test_null_stands_for_the_default(client: Client, topic: str) -> None:
    flags = ("discard", "durable", "durability", "auto_priority", "auto_create", "dedupe_node", "leases_durable")
    plain = client.put(f"/v0/topics/{topic}", {}).json["config"]
    assert client.put(f"/v0/topics/{topic}", dict.fromkeys(flags)).json["config"] == plain
    body = {"records": [{"data": 1, "meta": {"a": 1}, "tag": "t"}], "create": None, "disable_backpressure": None}
    assert client.post(f"/v0/topics/{topic}.new", body).status == 201
    (record,) = client.diff(f"{topic}.new", include_meta=None, include_tags=None, limit=0, max_batch_bytes=0)["records"]
    assert record["meta"] == {"a": 1}
    assert "$tag" not in record


def test_limits_that_answer_400_are_documented(document: Any, client: Client, topic: str) -> None:
    schemas = document["components"]["schemas"]
    assert schemas["AppendRequest"]["properties"]["records"]["minItems"] == 1
    assert client.post(f"/v0/topics/{topic}", {"records": []}).status == 400
    for struct in ("AckRequest", "NackRequest", "ExtendRequest"):
        shown = schemas[struct]["properties"]["seqs"]
        assert (shown["minItems"], shown["maxItems"]) == (1, 1000)
    for struct, field, path in (
        ("DiffRequest", "from_seq", f"/v0/topics/{topic}/diff"),
        ("DeleteRequest", "before_seq", f"/v0/topics/{topic}/delete"),
    ):
        shown = schemas[struct]["properties"][field]
        assert (shown["minimum"], shown["maximum"]) == (0, 2**64 - 1)
        client.append(topic, 1)
        assert client.post(path, {field: 2**64 - 1}).status == 200
        assert client.post(path, {field: 2**64}).status == 400
    assert schemas["ConfigRequest"]["properties"]["ttl_ms"]["maximum"] == 2**64 - 1
    assert client.put(f"/v0/topics/{topic}", {"ttl_ms": 2**64}).status == 400


def is_endless(operation: Any) -> bool:
    """A stream or a WebSocket: its answer has no end to wait for."""
    return "101" in operation["responses"] or any(
        "text/event-stream" in response.get("content", {}) for response in operation["responses"].values()
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_schemathesis_finds_no_answer_that_the_document_does_not_allow(
    tmp_path: Path, document: Any, mode: str
) -> None:
    # Here, because it takes a second to import, in every process that collects tests.
    import schemathesis
    from schemathesis import GenerationMode
    from schemathesis.checks import not_a_server_error
    from schemathesis.core.result import Ok
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    checks = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
    schema = schemathesis.openapi.from_dict(document)
    tried = 0
    with serving(tmp_path) as server:
        schema.config.update(base_url=f"http://127.0.0.1:{server.port}")
        for found in schema.get_all_operations():
            assert isinstance(found, Ok)
            operation = found.ok()
            described = document["paths"][operation.path][operation.method]
            if is_endless(described) or (mode == "negative" and not operation.body):
                continue

            @settings(max_examples=EXAMPLES, derandomize=True, database=None, suppress_health_check=SLOW)
            @given(case=operation.as_strategy(generation_mode=GenerationMode(mode)))
            def try_one(case: Any) -> None:
                nonlocal tried
                tried += 1
                if isinstance(case.body, dict) and case.body.get("wait_ms"):
                    case.body["wait_ms"] = 0
                case.call_and_validate(checks=checks)

            try_one()
    assert tried > EXAMPLES
