"""Topics, queues, routers, groups, webhooks, schedules and pipelines for a server whose console is looked at."""

from tests.serving import Client


def fill(client: Client) -> None:
    records = [
        {
            "data": {"order": 1000 + number, "customer": f"c-{number % 17}", "total": number / 4, "note": None},
            "tag": f"customer-{number % 17}",
            "node": "eu-1" if number % 3 else "us-1",
        }
        for number in range(300)
    ]
    client.put("/v0/topics/orders", {"cap_records": 100_000})
    client.post("/v0/topics/orders", {"records": records})
    client.post("/v0/topics/orders/delete", {"before_seq": 20})
    for number in range(12):
        client.append(f"shop.events.{number:02}", *range(number + 1))
    fill_queue(client)
    for source, dest in (("orders", "orders.eu"), ("orders", "orders.audit"), ("orders.audit", "archive"), ("a", "b")):
        client.put(f"/v0/routers/{source}-to-{dest}", {"source": source, "dest": dest, "backfill": True})
    client.put("/v0/routers/b-to-a", {"source": "b", "dest": "a", "allow_cycle": True})
    group = {"topic_id": "orders", "group_id": "billing"}
    client.post("/v1/api/topics/consume", {**group, "start": "Earliest", "limit": 60})
    client.post("/v1/api/topics/ack", {**group, "upto_offset": 60})
    client.post("/v0/txns/nightly/7/stage", {"stage": "part-0", "topic": "orders", "records": [{"data": 1}]})
    client.put(
        "/v0/pipelines/revenue",
        {
            "sources": {"orders": {"topic": "orders"}},
            "sql": "SELECT customer,\n       sum(data.totl) AS revenue\nFROM orders GROUP BY customer",
            "sink": {"topic": "revenue"},
        },
    )
    client.post(
        "/v0/pipelines/revenue/status",
        {"state": "failed", "runner": "spark-1", "revision": 1, "batch": 41, "lag": 12, "last_error": FAILURE},
    )
    for name, paused in (("shop", False), ("billing", True)):
        hook = {"topic": "orders", "url": f"https://{name}.example.org/hook", "paused": paused}
        client.put(f"/v0/webhooks/{name}", {**hook, "headers": {"X-Team": name}})
    data = {"report": "sales"}
    client.put("/v0/schedules/yearly", {"topic": "shop.events.00", "cron": "0 3 1 1 *", "data": data})
    client.put("/v0/schedules/later", {"topic": "shop.events.00", "at": 4_102_444_800_000, "paused": True})


FAILURE = "ParseException: [UNRESOLVED_COLUMN] line 2: data.totl cannot be resolved"


def fill_queue(client: Client) -> None:
    """80 jobs: 6 are dead for two reasons, 8 are in flight, 6 rest."""
    client.put(
        "/v0/topics/mail", {"type": "queue", "dead_letter": "mail.dead", "max_deliveries": 3, "lease_ms": 600_000}
    )
    jobs = [{"data": {"to": f"user{number}@example.org"}, "tag": f"tenant-{number % 5}"} for number in range(74)]
    late = [{"data": {"to": "late@example.org"}, "delay_ms": 3_600_000, "tag": "tenant-9"} for _ in range(6)]
    client.post("/v0/topics/mail", {"records": [*jobs, *late]})
    for worker, error in (
        ("worker-a", "SMTP 550: mailbox unavailable"),
        ("worker-b", "TimeoutError: no answer in 30 s"),
    ):
        claimed = client.post("/v0/topics/mail/claim", {"node": worker, "max": 7}).json["claimed"]
        seqs = [job["$seq"] for job in claimed]
        failed = {"node": worker, "seqs": seqs[:3], "dead_letter": True, "error": error}
        client.post("/v0/topics/mail/nack", failed)
