"""Webhooks of a real server: signatures that the real library verifies, receivers that misbehave, keys, kills."""

from __future__ import annotations

import os
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from tests.patience import PATIENCE_S
from tests.serving import Client, ServerProcess, serving
from tests.webhooks.receiver import OK, Received, Receiver, Reply, receiving, unused_port


def put(client: Client, name: str, topic: str, url: str, **fields: Any) -> Any:
    if client.get(f"/v0/topics/{topic}").status == 404:
        assert client.put(f"/v0/topics/{topic}", {}).status == 201
    reply = client.put(f"/v0/webhooks/{name}", {"topic": topic, "url": url, **fields})
    assert reply.status in (200, 201), reply
    return reply.json


def until(client: Client, name: str, **fields: Any) -> Any:
    """The webhook, as soon as its fields are like this."""
    give_up_s = time.monotonic() + PATIENCE_S
    while True:
        shown = client.get(f"/v0/webhooks/{name}").json
        if all(shown[field] == value for field, value in fields.items()):
            return shown
        assert time.monotonic() < give_up_s, shown


def verified(received: Received, secret: str) -> Any:
    return Webhook(secret).verify(received.body, received.headers)


def test_the_library_verifies_what_is_sent(local: ServerProcess, receiver: Receiver) -> None:
    client = local.client()
    made = put(client, "signed", "signed", receiver.url, headers={"X-Team": "a"})
    client.post("/v0/topics/signed", {"records": [{"data": {"a": "ü"}, "tag": "x"}]})
    (received,) = receiver.wait_for(1)
    assert verified(received, made["secret"])["data"] == {"a": "ü"}
    assert (received.path, received.headers["x-team"]) == ("/hook", "a")
    assert received.headers["user-agent"].startswith("topics/")
    with pytest.raises(WebhookVerificationError):
        verified(received._replace(body=received.body + b" "), made["secret"])
    until(client, "signed", delivered_total=1, lag=0)


def test_after_a_rotation_both_secrets_verify_until_the_grace_is_over(local: ServerProcess, receiver: Receiver) -> None:
    client = local.client()
    old = put(client, "rotated", "rotated", receiver.url)["secret"]
    new = client.post("/v0/webhooks/rotated/rotate", {}).json
    client.append("rotated", 1)
    (received,) = receiver.wait_for(1)
    for secret in (old, new["secret"]):
        assert verified(received, secret)["data"] == 1
    assert [each["until_ts"] is None for each in new["secrets"]] == [True, False]
    last = client.post("/v0/webhooks/rotated/rotate", {"grace_ms": 0}).json["secret"]
    client.append("rotated", 2)
    _, received = receiver.wait_for(2)
    assert verified(received, last)["data"] == 2
    for secret in (old, new["secret"]):
        with pytest.raises(WebhookVerificationError):
            verified(received, secret)
    assert client.post("/v0/webhooks/absent/rotate", {}).code == "webhook_not_found"


def test_a_test_tells_what_came_of_it(local: ServerProcess, receiver: Receiver) -> None:
    client = local.client()
    secret = put(client, "tried", "tried", receiver.url, paused=True)["secret"]
    result = client.post("/v0/webhooks/tried/test").json
    assert (result["delivered"], result["status"], result["error"]) == (True, 200, None)
    assert verified(receiver.received[0], secret)["data"] == {"test": True}
    receiver.answering = lambda _: Reply(422, body="no such customer ü".encode())
    result = client.post("/v0/webhooks/tried/test").json
    assert (result["delivered"], result["status"], result["answer"]) == (False, 422, "no such customer ü")
    receiver.answering = lambda _: Reply(raw=b"HTTP/1.1 200 OK\r\n\r\nto the end")
    result = client.post("/v0/webhooks/tried/test").json
    assert (result["delivered"], result["answer"]) == (True, "to the end")
    put(client, "tried", "tried", f"http://127.0.0.1:{unused_port()}/", paused=True)
    result = client.post("/v0/webhooks/tried/test").json
    assert (result["delivered"], result["status"]) == (False, 0)
    assert "could not be reached" in result["error"]
    assert client.get("/v0/webhooks/tried").json["delivered_total"] == 0


def test_receivers_that_misbehave_are_tried_again(local: ServerProcess, receiver: Receiver) -> None:
    client = local.client()
    replies = [
        Reply(raw=b""),
        Reply(500),
        Reply(raw=b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc"),
        Reply(raw=b"nonsense\r\n\r\n"),
        Reply(302, (("location", "http://127.0.0.1:1/"),)),
        Reply(200, body=b"x" * 10_000_000),
    ]
    waiting = iter(replies)
    receiver.answering = lambda _: next(waiting, OK)
    put(client, "rough", "rough", receiver.url, backoff_ms=100, backoff_ms_max=100)
    client.append("rough", 1)
    shown = until(client, "rough", delivered_total=1)
    assert shown["failed_total"] == len(replies) - 1
    assert len({each.id for each in receiver.received}) == 1, "a retry has the same id"
    errors = [note["error"] or note["status"] for note in shown["attempts"]]
    assert "closed before" in errors[0]
    assert errors[1] == 500
    assert "in the middle" in errors[2]
    assert "not HTTP" in errors[3]
    assert errors[4:] == [302, 200]


def test_a_receiver_that_does_not_answer_is_left(local: ServerProcess, receiver: Receiver) -> None:
    client = local.client()
    may_answer = threading.Event()

    def slow(received: Received) -> Reply:
        if received.record["data"] == "slow":
            may_answer.wait(PATIENCE_S)
        return OK

    receiver.answering = slow
    try:
        put(client, "slow", "slow", receiver.url, timeout_ms=100, max_attempts=1, dead_letter="slow.dead")
        client.append("slow", "slow", "quick")
        shown = until(client, "slow", delivered_total=1, dead_total=1)
        assert shown["attempts"][0]["error"] == "no answer within 0.1 s"
        assert client.diff("slow.dead")["records"][0]["meta"]["$webhook_error"] == "no answer within 0.1 s"
    finally:
        may_answer.set()


def test_retry_after_of_a_busy_receiver_is_heeded(local: ServerProcess, receiver: Receiver) -> None:
    client = local.client()
    receiver.answering = lambda _: Reply(429, (("retry-after", "3600"),))
    put(client, "busy", "busy", receiver.url, backoff_ms=100)
    client.append("busy", 1, 2)
    shown = until(client, "busy", failed_total=1)
    assert shown["next_retry_ts"] - shown["attempts"][0]["ts"] == 3_600_000


def test_tls_is_verified(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    stranger = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(stranger)
    trusted = tmp_path / "trusted.pem"
    authority.cert_pem.write_to_path(str(trusted))
    os.environ["SSL_CERT_FILE"] = str(trusted)
    try:
        server_of = serving(tmp_path / "data", webhooks_allow="127.0.0.1")
        with receiving(context) as known, receiving(stranger) as unknown, server_of as server:
            client = server.client()
            put(client, "a", "t", known.url)
            put(client, "b", "t", unknown.url)
            assert client.post("/v0/webhooks/a/test").json["delivered"]
            refused = client.post("/v0/webhooks/b/test").json
            assert not refused["delivered"]
            assert "certificate verify failed" in refused["error"].lower().replace("_", " ")
    finally:
        del os.environ["SSL_CERT_FILE"]


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    keys = "full,reader:read,writer:rw,owner:admin+read,tenant::t42:,blind:admin"
    with serving(tmp_path_factory.mktemp("data"), api_keys=keys) as server:
        server.key = "full"
        for name in ("plain", "t42:a"):
            server.client().append(name, 1)
        yield server


def test_scopes_and_prefixes_hold(keyed: ServerProcess) -> None:
    body = {"topic": "plain", "url": "https://example.org/T0/secret", "paused": True}
    full, tenant, reader = keyed.client(), keyed.client("tenant"), keyed.client("reader")
    for key in ("reader", "writer", "blind"):
        assert keyed.client(key).put("/v0/webhooks/w", body).status == 403, key
    assert keyed.client("owner").put("/v0/webhooks/w", body).status == 201
    assert keyed.client("owner").put("/v0/webhooks/w", {**body, "dead_letter": "d"}).status == 403, "it writes there"
    for method, path in (("DELETE", ""), ("POST", "/rotate"), ("POST", "/resume"), ("POST", "/test")):
        for key in ("reader", "writer"):
            assert keyed.client(key).request(method, f"/v0/webhooks/w{path}").status == 403, (method, path)
    assert full.get("/v0/webhooks/w").json["url"] == body["url"]
    assert reader.get("/v0/webhooks/w").json["url"] == "https://example.org/…", "the path may be a secret"
    # The name and all topics must begin with a prefix of the key.
    mine = {**body, "topic": "t42:a"}
    assert tenant.put("/v0/webhooks/w2", mine).status == 403
    assert tenant.put("/v0/webhooks/t42:w", body).status == 403
    assert tenant.put("/v0/webhooks/t42:w", {**mine, "dead_letter": "plain"}).status == 403
    assert tenant.put("/v0/webhooks/t42:w", mine).status == 201
    assert full.put("/v0/webhooks/t42:elsewhere", body).status == 201
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/rotate"), ("POST", "/resume"), ("POST", "/test")):
        assert tenant.request(method, f"/v0/webhooks/t42:elsewhere{path}").status == 403, method
    assert tenant.put("/v0/webhooks/t42:elsewhere", mine).status == 403
    assert [item["webhook"] for item in tenant.get("/v0/webhooks").json["webhooks"]] == ["t42:w"]
    assert 'topics_webhook_paused{webhook="t42:w"} 1.0' in tenant.get("/v0/metrics").body.decode()
    assert 'webhook="w"' not in tenant.get("/v0/metrics").body.decode()


def test_mistakes_are_explained_and_private_addresses_refused(keyed: ServerProcess) -> None:
    client = keyed.client()
    reply = client.put("/v0/webhooks/w", {"topic": "plain", "urll": "https://a.org"})
    assert (reply.status, "url" in reply.json["error"]["message"]) == (400, True)
    assert client.post("/v0/webhooks/w/test", {"now": True}).status == 400
    for url in ("http://127.0.0.1/", "http://169.254.169.254/latest", "http://[::1]/", "http://[::ffff:10.0.0.1]/"):
        reply = client.put("/v0/webhooks/w", {"topic": "plain", "url": url})
        assert (reply.status, "webhooks_allow" in reply.json["error"]["message"]) == (400, True), url
    put(client, "named", "plain", f"http://localhost:{keyed.port}/")
    refused = client.post("/v0/webhooks/named/test").json
    assert (refused["status"], "address refused" in refused["error"]) == (0, True)
    put(client, "named", "plain", "https://example.org/", paused=True)


def test_a_wrong_setting_stops_the_start(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, webhooks_allow="http://a.org")
    assert server.exit_code() == 2
    assert "webhooks_allow" in server.log


@pytest.mark.slow
def test_kills_lose_nothing_keep_the_order_of_tags_and_repeat_little(tmp_path: Path) -> None:
    tags, rounds, per_round = 7, 5, 400
    with receiving() as receiver:

        def answer(received: Received) -> Reply:
            # Each first attempt of some fails.
            fails = received.seq % 13 == 0 and sum(each.seq == received.seq for each in receiver.received) == 1
            return Reply(503) if fails else OK

        receiver.answering = answer
        secret = ""
        for round_number in range(rounds):
            with serving(tmp_path, webhooks_allow="127.0.0.1") as server:
                client = server.client()
                if not round_number:
                    made = put(client, "w", "t", receiver.url, concurrency=8, backoff_ms=100, backoff_ms_max=200)
                    secret = made["secret"]
                for number in range(per_round):
                    seq = round_number * per_round + number
                    record = {"data": seq, "tag": f"tag-{seq % tags}"}
                    assert client.post("/v0/topics/t", {"records": [record]}).status == 200
                # Killed in the middle, wherever it is.
                receiver.wait_for((round_number + 1) * per_round // 2)
        total = rounds * per_round
        with serving(tmp_path, webhooks_allow="127.0.0.1") as server:
            shown = until(server.client(), "w", lag=0, in_flight=0)
            assert (shown["cursor"], shown["lost_total"], shown["dead_total"]) == (total, 0, 0)
            assert server.terminate() == 0
    first: dict[int, int] = {}
    for place, each in enumerate(receiver.received):
        verified(each, secret)
        first.setdefault(each.record["data"], place)
    assert sorted(first) == list(range(total)), "nothing is lost"
    for tag in range(tags):
        seqs = [seq for seq in range(total) if seq % tags == tag]
        assert seqs == sorted(seqs, key=first.__getitem__), "no record of a tag comes before an earlier one"
    failed = sum(1 for seq in range(1, total + 1) if seq % 13 == 0)
    repeated = len(receiver.received) - total - failed
    assert repeated <= (rounds + 1) * 8 * 2, "only what was under way when it was killed"


@pytest.mark.slow
def test_a_stop_waits_for_what_is_under_way_and_notes_it(tmp_path: Path) -> None:
    with receiving() as receiver:
        answers = threading.Event()
        receiver.answering = lambda _: Reply(200 if answers.wait(PATIENCE_S) else 500)
        with serving(tmp_path, webhooks_allow="127.0.0.1") as server:
            client = server.client()
            put(client, "w", "t", receiver.url)
            client.append("t", 1, 2)
            receiver.wait_for(1)
            server.process.send_signal(15)
            server.wait_for_log("draining")
            answers.set()
            assert server.exit_code() == 0
        with serving(tmp_path, webhooks_allow="127.0.0.1") as server:
            until(server.client(), "w", cursor=2)
    assert receiver.seqs == [1, 2], "neither is repeated"
