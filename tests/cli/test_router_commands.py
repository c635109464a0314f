"""`topics router`: made, listed, removed, and drawn as a tree, for Graphviz or for Mermaid."""

import pytest

from tests.cli.terminal import Invoke
from tests.serving import Client


@pytest.fixture
def routers(invoke: Invoke, client: Client, topic: str) -> str:
    """orders flows into audit and copy, audit into archive; named after the test."""
    for source, dest, *flags in (
        ("orders", "audit"),
        ("orders", "copy", "--name", f"{topic}-named", "--exactly-once"),
        ("audit", "archive", "--tag", "keep-*"),
    ):
        assert invoke("router", "create", f"{topic}.{source}", f"{topic}.{dest}", *flags).code == 0
    return topic


def test_a_router_is_made_as_the_flags_say(invoke: Invoke, client: Client, topic: str) -> None:
    client.append(f"{topic}-a", "early")
    done = invoke(
        *("router", "create", f"{topic}-a", f"{topic}-b", "--name", topic, "--tag", "x*", "--exactly-once"),
        *("--drop-node", "--drop-tag", "--allow-cycle"),
    )
    assert done.err == f"topics: created the router {topic}\n"
    made = client.get(f"/v0/routers/{topic}").json
    assert (made["source"], made["dest"], made["filter"]) == (f"{topic}-a", f"{topic}-b", ["tag", "Glob", "x*"])
    assert (made["preserve_node"], made["preserve_tag"]) == (False, False)
    assert (made["allow_cycle"], made["guarantee"]) == (True, "exactly_once")
    again = invoke("router", "create", f"{topic}-a", f"{topic}-b", "--name", topic, "--tag", "y")
    assert again.err == f"topics: changed the router {topic}\n"
    assert client.get(f"/v0/routers/{topic}").json["filter"] == ["tag", "Eq", "y"]


def test_a_backfill_copies_what_was_there_before(invoke: Invoke, client: Client, topic: str) -> None:
    client.append(f"{topic}-a", 1, 2)
    invoke("router", "create", f"{topic}-a", f"{topic}-b", "--backfill")
    assert client.payloads(f"{topic}-b", wait_ms=30_000)[:2] == [1, 2]


def test_routers_are_listed_with_what_they_have_done(invoke: Invoke, client: Client, routers: str) -> None:
    client.append(f"{routers}.orders", 1, 2, 3)
    client.diff(f"{routers}.audit", from_seq=2, wait_ms=30_000)
    listed = invoke("router", "ls", "--source", f"{routers}.orders", "-o", "json").json
    assert {router["router"]: router["forwarded_total"] for router in listed}[f"{routers}.orders->{routers}.audit"] == 3
    assert all(router["last_error"] is None for router in listed)
    rows = invoke("router", "ls", "--dest", f"{routers}.archive").out.splitlines()
    assert rows[0].split()[:5] == ["ROUTER", "SOURCE", "DEST", "FORWARDED", "LAG"]
    assert len(rows) == 2


def test_a_circle_is_refused_with_its_way_round(invoke: Invoke, routers: str) -> None:
    done = invoke("router", "create", f"{routers}.archive", f"{routers}.orders")
    assert done.code == 3
    assert f"{routers}.archive" in done.complaint


def test_a_removed_router_is_gone_and_a_missing_one_is_an_error(invoke: Invoke, client: Client, routers: str) -> None:
    done = invoke("router", "rm", f"{routers}-named", "no-such-router")
    assert (done.code, done.err) == (
        1,
        f"topics: removed {routers}-named\ntopics: there is no router no-such-router\n",
    )
    assert client.get(f"/v0/routers/{routers}-named").status == 404


def test_routers_are_removed_by_what_they_connect(invoke: Invoke, client: Client, routers: str) -> None:
    source, dest = f"{routers}.orders", f"{routers}.copy"
    done = invoke("router", "rm", "--source", source, "--dest", dest)
    assert (done.code, done.err) == (0, f"topics: removed {routers}-named\n")
    again = invoke("router", "rm", "--source", source, "--dest", dest)
    assert (again.code, again.complaint) == (1, f"there is no router from {source} to {dest}")
    assert invoke("router", "rm", "--source", source).err == f"topics: removed {source}->{routers}.audit\n"
    left = [router["router"] for router in invoke("router", "ls", "-o", "json").json if routers in router["source"]]
    assert left == [f"{routers}.audit->{routers}.archive"]


def test_routers_are_removed_by_name_or_by_topics_and_not_all_of_them_by_mistake(invoke: Invoke, routers: str) -> None:
    for arguments in ((), (f"{routers}-named", "--source", f"{routers}.orders")):
        done = invoke("router", "rm", *arguments)
        assert (done.code, done.complaint.startswith("name the routers to remove, or give --source")) == (2, True)
    assert len(invoke("router", "ls", "--source", f"{routers}.orders", "-o", "json").json) == 2


def test_the_graph_is_a_tree_of_what_flows_into_what(invoke: Invoke, routers: str) -> None:
    assert invoke("router", "graph", f"{routers}.orders").out.splitlines() == [
        f"{routers}.orders",
        f"├─ {routers}.audit",
        f"│  └─ {routers}.archive",
        f"└─ {routers}.copy [{routers}-named, exactly once]",
    ]
    assert invoke("router", "graph", f"{routers}.audit").out.splitlines() == [
        f"{routers}.audit",
        f"└─ {routers}.archive",
    ]
    assert f"{routers}.orders" in invoke("router", "graph").out


def test_circles_are_drawn_once(invoke: Invoke, topic: str) -> None:
    invoke("router", "create", f"{topic}.a", f"{topic}.b", "--allow-cycle")
    invoke("router", "create", f"{topic}.b", f"{topic}.a", "--allow-cycle")
    assert invoke("router", "graph", f"{topic}.a").out.splitlines() == [
        f"{topic}.a",
        f"└─ {topic}.b",
        f"   └─ {topic}.a (again)",
    ]


def test_the_graph_is_source_for_drawing_programs(invoke: Invoke, routers: str) -> None:
    dot = invoke("router", "graph", f"{routers}.audit", "-o", "dot").out.splitlines()
    edge = f"{routers}.audit->{routers}.archive"
    assert dot[0] == "digraph routers {"
    assert f'  "{routers}.audit" -> "{routers}.archive" [label="{edge}"];' in dot
    assert invoke("router", "graph", f"{routers}.audit", "-o", "mermaid").out.splitlines() == [
        "flowchart LR",
        f'  t0["{routers}.audit"]',
        f'  t1["{routers}.archive"]',
        "  t0 --> t1",
    ]
