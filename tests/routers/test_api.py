"""Routers over HTTP: every field, filter, page and error, with keys and without, on a real server."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.serving import Client, Reply, ServerProcess, serving

_numbers = itertools.count(1)
WAIT_S_MAX = PATIENCE_S


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("data")) as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Client:
    return server.client()


@pytest.fixture
def name() -> str:
    """A prefix that no other test uses."""
    return f"n{next(_numbers)}."


def put(client: Client, router: str, source: str, dest: str, **fields: Any) -> Reply:
    return client.put(f"/v0/routers/{router}", {"source": source, "dest": dest, **fields})


def until(happened: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S_MAX
    while not happened():
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.002)


def copies(client: Client, topic: str, count: int) -> list[Any]:
    """The payloads of a destination, once there are `count` of them."""
    until(lambda: client.state(topic)["count"] >= count)
    return client.payloads(topic, limit=1000)


def test_a_router_is_created_shown_and_removed(client: Client, name: str) -> None:
    router, source, dest = f"{name}a->b", f"{name}a", f"{name}b"
    made = put(client, router, source, dest)
    assert made.status == 201
    shown = made.json
    assert shown.pop("performance")["server_total_ms"] >= 0
    assert shown == {
        "router": router,
        "created": True,
        "source": source,
        "dest": dest,
        "preserve_node": True,
        "preserve_tag": True,
        "filter": None,
        "allow_cycle": False,
        "guarantee": "at_least_once",
    }
    client.append(source, 1, 2)
    assert copies(client, dest, 2) == [1, 2]
    seen = client.get(f"/v0/routers/{router}").json
    del seen["performance"]
    del shown["created"]
    assert seen == {**shown, "forwarded_total": 2, "lag": 0, "last_error": None}
    gone = client.delete(f"/v0/routers/{router}")
    assert (gone.status, gone.json["deleted"], gone.json["router"]) == (200, True, router)
    again = client.delete(f"/v0/routers/{router}")
    assert (again.status, again.json["deleted"]) == (200, False)
    missing = client.get(f"/v0/routers/{router}")
    assert (missing.status, missing.code) == (404, "router_not_found")
    client.append(source, 3)
    assert client.payloads(dest) == [1, 2]


def test_every_field_is_echoed_and_a_change_is_no_creation(client: Client, name: str) -> None:
    fields = {
        "preserve_node": False,
        "preserve_tag": False,
        "filter": ["tag", "Glob", "p:*"],
        "allow_cycle": True,
        "guarantee": "exactly_once",
    }
    first = put(client, f"{name}r", f"{name}a", f"{name}b", **fields, create_dest=True, backfill=None)
    assert first.status == 201
    assert {key: first.json[key] for key in fields} == fields
    same = put(client, f"{name}r", f"{name}a", f"{name}b", **fields)
    assert (same.status, same.json["created"]) == (200, False)
    changed = put(client, f"{name}r", f"{name}a", f"{name}b", filter="p", preserve_node=None)
    assert (changed.status, changed.json["created"]) == (200, False)
    assert (changed.json["filter"], changed.json["preserve_node"], changed.json["allow_cycle"]) == ("p", True, False)


@pytest.mark.parametrize("arrow", [">", "%3E", "%3e"])
def test_an_arrow_in_a_name_may_be_escaped(client: Client, name: str, arrow: str) -> None:
    assert put(client, f"{name}a-{arrow}b", f"{name}a", f"{name}b").json["router"] == f"{name}a->b"
    assert client.get(f"/v0/routers/{name}a-%3Eb").status == 200
    assert client.get(f"/v0/routers/{name}a->b").status == 200
    assert client.delete(f"/v0/routers/{name}a-{arrow}b").json["deleted"] is True


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "source"),
        ({"source": "a"}, "dest"),
        ({"source": "a", "dest": "a"}, "dest"),
        ({"source": None, "dest": "b"}, "source"),
        ({"source": "a", "dest": "b", "filter": ["tag", "Glob", "a*b*"]}, "filter"),
        ({"source": "a", "dest": "b", "filter": {}}, "filter"),
        ({"source": "a", "dest": "b", "filter": "x" * 257}, "filter"),
        ({"source": "a", "dest": "b", "filter": ["tag", "Glob", "x" * 257 + "*"]}, "filter"),
        ({"source": "a", "dest": "b", "guarantee": "sometimes"}, "guarantee"),
        ({"source": "a", "dest": "b", "allow_cycle": 1}, "allow_cycle"),
        ({"source": "a/b", "dest": "b"}, "source"),
    ],
)
def test_a_malformed_router_is_a_400_that_names_the_field(client: Client, body: Any, field: str) -> None:
    refused = client.put("/v0/routers/bad", body)
    assert (refused.status, refused.code) == (400, "invalid_request")
    assert refused.detail["field"] == field
    assert client.get("/v0/routers/bad").status == 404


def test_a_bad_name_is_a_400(client: Client) -> None:
    for method in ("GET", "DELETE"):
        assert client.request(method, "/v0/routers/%20bad").status == 400
    assert put(client, "%3Ebad", "a", "b").status == 400


def test_conflicts_are_409_with_their_reason(client: Client, name: str) -> None:
    a, b, c = f"{name}a", f"{name}b", f"{name}c"
    put(client, f"{name}1", a, b)
    cycle = put(client, f"{name}2", b, a)
    assert (cycle.status, cycle.code, cycle.detail["cycle"]) == (409, "router_cycle", [a, b, a])
    fan_in = put(client, f"{name}3", c, b)
    assert (fan_in.status, fan_in.code) == (409, "topic_exists_incompatible")
    assert fan_in.detail["reason"] == "router_dest_fan_in"
    assert client.get(f"/v0/topics/{c}").status == 404
    second = put(client, f"{name}4", a, b)
    assert (second.status, second.code) == (409, "topic_exists_incompatible")
    assert put(client, f"{name}2", b, a, allow_cycle=True).status == 201


def test_create_dest_false_is_a_404_without_the_destination(client: Client, name: str) -> None:
    refused = put(client, f"{name}r", f"{name}a", f"{name}b", create_dest=False)
    assert (refused.status, refused.code) == (404, "topic_not_found")
    assert client.get(f"/v0/topics/{name}a").status == 404


def test_deleting_a_topic_tells_the_routers_that_went_with_it(client: Client, name: str) -> None:
    put(client, f"{name}a->b", f"{name}a", f"{name}b")
    put(client, f"{name}b->c", f"{name}b", f"{name}c")
    dropped = client.delete(f"/v0/topics/{name}b").json
    assert dropped["routers_removed"] == [f"{name}a->b", f"{name}b->c"]
    assert client.get(f"/v0/routers/{name}a->b").status == 404
    assert client.delete(f"/v0/topics/{name}b").json["routers_removed"] == []


def test_routers_are_listed_filtered_and_paged(client: Client, name: str) -> None:
    for number in range(5):
        put(client, f"{name}r{number}", f"{name}s{number % 2}", f"{name}d{number}")

    def listed(query: str) -> Any:
        reply = client.get(f"/v0/routers?prefix={name}&{query}")
        assert reply.status == 200, reply
        return reply.json

    everything = listed("")
    assert [item["router"] for item in everything["routers"]] == [f"{name}r{number}" for number in range(5)]
    assert everything["routers"][0] == {
        "router": f"{name}r0",
        "source": f"{name}s0",
        "dest": f"{name}d0",
        "guarantee": "at_least_once",
        "forwarded_total": 0,
        "lag": 0,
        "last_error": None,
    }
    assert "next_cursor" not in everything
    assert [item["router"] for item in listed(f"source={name}s1")["routers"]] == [f"{name}r1", f"{name}r3"]
    assert [item["router"] for item in listed(f"dest={name}d4")["routers"]] == [f"{name}r4"]
    first = listed("page_size=3")
    second = listed(f"page_size=3&cursor={first['next_cursor']}")
    assert [item["router"] for item in (*first["routers"], *second["routers"])] == [
        item["router"] for item in everything["routers"]
    ]
    assert "next_cursor" not in second
    for broken in ("x", "%2B%2B", "eyJ9"):
        refused = client.get(f"/v0/routers?cursor={broken}")
        assert (refused.status, refused.code) == (400, "invalid_request")


def test_a_long_poll_at_the_destination_is_woken_by_a_copy(server: ServerProcess, name: str) -> None:
    writer = server.client()
    put(writer, f"{name}r", f"{name}a", f"{name}b")
    waiting = server.waiting("POST", f"/v0/topics/{name}b/diff", {"wait_ms": 30_000})
    writer.append(f"{name}a", "hello")
    assert [record["data"] for record in waiting.end().json["records"]] == ["hello"]


def test_a_full_destination_shows_in_lag_and_last_error(client: Client, name: str) -> None:
    client.put(f"/v0/topics/{name}b", {"cap_records": 1, "discard": "reject"})
    put(client, f"{name}r", f"{name}a", f"{name}b")
    client.append(f"{name}a", 1, 2)

    def look() -> Any:
        return client.get(f"/v0/routers/{name}r").json

    until(lambda: look()["last_error"] is not None)
    assert look()["lag"] == 1
    assert look()["last_error"].startswith("topic_full")
    assert client.append(f"{name}a", 3).status == 200
    client.post(f"/v0/topics/{name}b/delete", {"before_seq": 2})
    until(lambda: look()["forwarded_total"] == 2)
    client.put(f"/v0/topics/{name}b", {})
    until(lambda: look()["lag"] == 0)
    assert look()["last_error"] is None
    assert client.payloads(f"{name}b") == [2, 3]


def test_routers_are_counted_in_the_metrics(client: Client, name: str) -> None:
    def count() -> int:
        return client.get("/v0/metrics", headers={"Accept": "application/json"}).json["topics_routers"]

    before = count()
    put(client, f"{name}r", f"{name}a", f"{name}b")
    assert count() == before + 1


def test_routers_are_described(client: Client) -> None:
    paths = client.get("/v0/openapi.json").json["paths"]
    assert set(paths["/v0/routers"]) == {"get"}
    one = paths["/v0/routers/{router}"]
    assert set(one) == {"get", "put", "delete"}
    assert ">" in one["get"]["parameters"][0]["schema"]["pattern"]


def test_the_cap_on_routers_is_a_429_before_any_topic_is_made(tmp_path: Path) -> None:
    with serving(tmp_path / "data", max_routers=1) as server:
        client = server.client()
        assert put(client, "one", "a", "b").status == 201
        refused = put(client, "two", "c", "d")
        assert (refused.status, refused.code) == (429, "throttled")
        assert refused.detail == {"limit": "max_routers", "max": 1}
        assert "retry-after" in refused.headers
        assert client.get("/v0/topics/c").status == client.get("/v0/topics/d").status == 404
        assert put(client, "one", "a", "b", preserve_tag=False).status == 200


KEYS = "root,reader:read,writer:read+write,deleter:delete,tenant::t1:"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("keys"), api_keys=KEYS) as server:
        yield server


def test_scopes_are_admin_to_put_read_to_look_delete_to_remove(guarded: ServerProcess) -> None:
    root = guarded.client("root")
    assert put(guarded.client("reader"), "r", "a", "b").status == 403
    assert put(guarded.client("writer"), "r", "a", "b").status == 403
    assert put(root, "r", "a", "b").status == 201
    assert guarded.client("reader").get("/v0/routers/r").status == 200
    assert guarded.client("reader").get("/v0/routers").status == 200
    assert guarded.client("deleter").get("/v0/routers/r").status == 403
    assert guarded.client("writer").delete("/v0/routers/r").status == 403
    assert guarded.client("deleter").delete("/v0/routers/r").status == 200
    assert guarded.stranger().get("/v0/routers").status == 401


def test_a_prefix_limits_the_name_the_source_and_the_destination(guarded: ServerProcess) -> None:
    root, tenant = guarded.client("root"), guarded.client("tenant")
    assert put(tenant, "t1:r", "t1:a", "t1:b").status == 201
    for router, source, dest in (("r9", "t1:a", "t1:c"), ("t1:x", "other", "t1:c"), ("t1:x", "t1:a", "other")):
        refused = put(tenant, router, source, dest)
        assert (refused.status, refused.code) == (403, "forbidden")
    assert root.get("/v0/topics/other").status == 404
    put(root, "t1:foreign", "z.a", "z.b")
    put(root, "hidden", "t1:a", "t1:z")
    assert tenant.get("/v0/routers/t1:r").status == 200
    for router in ("hidden", "t1:foreign"):
        assert tenant.get(f"/v0/routers/{router}").status == 403
        assert tenant.delete(f"/v0/routers/{router}").status == 403
    assert [item["router"] for item in tenant.get("/v0/routers").json["routers"]] == ["t1:r"]
    assert {"t1:r", "hidden", "t1:foreign"} <= {item["router"] for item in root.get("/v0/routers").json["routers"]}
    assert tenant.delete("/v0/topics/t1:a").json["routers_removed"] == ["t1:r"]
    assert root.get("/v0/routers/hidden").status == 404


def test_five_symmetric_nodes_never_see_their_own_records(server: ServerProcess, name: str) -> None:
    """Every node writes to the bus and reads an inbox of its own that a router fills."""
    nodes = [f"node-{number}" for number in range(5)]
    clients = {node: server.client() for node in nodes}
    for node in nodes:
        put(clients[node], f"{name}bus->{node}", f"{name}bus", f"{name}{node}")
    rounds = 20
    for number in range(rounds):
        for node in nodes:
            clients[node].append(f"{name}bus", [node, number], node=node)
    for node in nodes:
        until(lambda node=node: clients[node].state(f"{name}{node}")["count"] == rounds * len(nodes))
        seen = clients[node].payloads(f"{name}{node}", node=node, limit=1000)
        assert node not in {origin for origin, _ in seen}
        for other in set(nodes) - {node}:
            assert [number for origin, number in seen if origin == other] == list(range(rounds))
