"""Large bodies over a real socket: refused by their head or a look at their bytes, served if they are legal."""

from tests.serving import Client

MIB = 1024 * 1024
JSON = {"Content-Type": "application/json"}


def test_a_body_without_records_is_refused_by_its_length(client: Client, topic: str) -> None:
    client.post(f"/v0/topics/{topic}", {"records": [{"data": 1}]})
    body = b'{"from_seq": 0' + b" " * (3 * MIB) + b"}"
    reply = client.post(f"/v0/topics/{topic}/diff", body=body, headers=JSON)
    assert (reply.status, reply.code) == (413, "payload_too_large")
    assert reply.detail["max"] == 2 * MIB
    assert client.get("/v0/health").status == 200


def test_a_watch_of_far_too_many_topics_is_refused_by_a_look_at_it(client: Client) -> None:
    body = b'{"topics": {' + b",".join(b'"t%d": {}' % n for n in range(100_000)) + b"}}"
    assert len(body) < 2 * MIB
    reply = client.post("/v0/watch", body=body, headers=JSON)
    assert (reply.status, reply.code) == (400, "invalid_request")
    assert reply.detail == {"field": "topics", "max": 256}


def test_too_many_records_are_the_same_error_in_a_small_body_and_in_a_large_one(client: Client, topic: str) -> None:
    small = {"records": [{"data": 1}] * 10_001}
    large = {"records": [{"data": 1}] * 500_000}
    for body in (small, large):
        reply = client.post(f"/v0/topics/{topic}", body)
        assert (reply.status, reply.code) == (400, "batch_too_large")
        assert reply.detail == {"field": "records", "max": 10_000}


def test_a_large_batch_is_appended_whole(client: Client, topic: str) -> None:
    records = [{"data": {"n": n, "text": "z" * 2_000}, "tag": f"t{n}"} for n in range(9_000)]
    reply = client.post(f"/v0/topics/{topic}?return_seqs=false", {"records": records, "idempotency_key": "once"})
    assert (reply.status, reply.json["first_seq"], reply.json["last_seq"]) == (201, 1, 9_000)
    again = client.post(f"/v0/topics/{topic}?return_seqs=false", {"records": records, "idempotency_key": "once"})
    assert (again.status, again.json["deduped"], again.json["last_seq"]) == (200, True, 9_000)
    found = client.post(f"/v0/topics/{topic}/diff", {"from_seq": 8_999, "include_tags": True}).json["records"]
    assert [(record["data"]["n"], record["$tag"]) for record in found] == [(8_999, "t8999")]


def test_a_mistake_in_a_large_batch_refuses_all_of_it(client: Client, topic: str) -> None:
    records: list[object] = [{"data": "z" * 2_000} for _ in range(2_000)]
    records[1_500] = {"data": 1, "tga": "x"}
    reply = client.post(f"/v0/topics/{topic}", {"records": records})
    assert (reply.status, reply.code) == (400, "invalid_request")
    assert reply.detail == {"field": "records[1500].tga", "nearest": "tag"}
    assert client.get(f"/v0/topics/{topic}").status == 404


def test_a_large_batch_for_several_topics_is_appended_whole_or_not_at_all(client: Client, topic: str) -> None:
    """As large as a batch for one topic may be: it is neither refused by its length nor decoded at once."""
    records: list[object] = [{"data": {"n": n, "text": "z" * 2_000}} for n in range(4_500)]
    names = [f"{topic}:a", f"{topic}:b"]
    reply = client.post("/v0/append?return_seqs=false", {"topics": {name: {"records": records} for name in names}})
    assert reply.status == 201
    assert [reply.json["topics"][name]["last_seq"] for name in names] == [4_500, 4_500]
    bad = [*records[:1_500], {"data": 1, "tga": "x"}]
    refused = client.post("/v0/append", {"topics": {names[0]: {"records": records}, names[1]: {"records": bad}}})
    assert (refused.status, refused.code) == (400, "invalid_request")
    assert refused.detail == {"field": "topics[...].records[1500].tga", "nearest": "tag"}
    assert client.get(f"/v0/topics/{names[0]}").json["head_seq"] == 4_500
