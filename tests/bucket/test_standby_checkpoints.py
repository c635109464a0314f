"""A standby makes checkpoints of its own: it shows what the primary shows, and goes on from them as primary."""

from __future__ import annotations

from typing import Any

from tests.bucket.standbys import Servers, servers, until_primary, until_sees
from tests.bucket.test_lost_machine import until_shipped
from tests.serving import Client

__all__ = ["servers"]

SMALL = {"checkpoint_ms": 40, "segment_max_events": 50, "hot_retain_bytes": 20_000, "hot_retain_segments": 0}
NAMES = ("source", "copy", "second", "capped", "q")


def write(client: Client, rounds: range) -> None:
    for number in rounds:
        client.append("source", *[{"n": number, "i": i, "pad": "x" * 200} for i in range(20)])
        client.append("capped", *range(number, number + 7))
        client.append("q", number, number)
        if number % 3 == 0:
            client.post("/v0/topics/source/delete", {"before_seq": 5 * number})
        if number % 5 == 0:
            claimed = client.post("/v0/topics/q/claim", {"node": "w", "max": 3}).json["claimed"]
            client.post("/v0/topics/q/ack", {"node": "w", "seqs": [job["$seq"] for job in claimed]})


def shown(client: Client) -> dict[str, Any]:
    """What readers get of all topics, without times of reading.

    And without bytes: caps cut a block whose body is on disk by the average size of its records.
    """
    found: dict[str, Any] = {}
    for name in NAMES:
        records: list[Any] = []
        cursor, caught_up = 0, False
        while not caught_up:
            page = client.diff(name, from_seq=cursor, limit=1000)
            records += [(record["$seq"], record["$ts"], record["data"]) for record in page["records"]]
            cursor, caught_up = page["next_from_seq"], page["caught_up"]
        state = client.state(name)
        found[name] = records, state["head_seq"], state["count"], state["earliest_seq"]
    return found


def test_a_standby_with_checkpoints_of_its_own_shows_and_keeps_what_the_primary_has(servers: Servers) -> None:
    primary = servers.primary("a", **SMALL)
    client = primary.client()
    for name in NAMES:
        config = {"type": "queue" if name == "q" else "log", "durability": "replicated"}
        client.put(f"/v0/topics/{name}", {**config, **({"cap_records": 30} if name == "capped" else {})})
    client.put("/v0/routers/one", {"source": "source", "dest": "copy"})
    client.put("/v0/routers/two", {"source": "copy", "dest": "second"})
    write(client, range(20))
    standby = servers.standby("b", **SMALL)
    reader = standby.client()
    write(client, range(20, 60))
    until_sees(client, "second", 1200)
    until_shipped(client)
    for name in NAMES:
        until_sees(reader, name, client.state(name)["head_seq"])
    seen = shown(client)
    assert seen["second"][1] == 1200
    assert shown(reader) == seen
    primary.kill()
    after = until_primary(standby)
    assert shown(after) == seen
    standby.kill()
    again = servers.primary("b", **SMALL)
    assert shown(again.client()) == seen
    assert again.client().append("source", "goes on").json["last_seq"] == 1201
    until_sees(again.client(), "second", 1201)
