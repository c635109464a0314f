"""`topics topic`: list, show and change topics of a live server."""

from tests.cli.terminal import Invoke
from tests.serving import Client


def test_a_created_topic_has_what_the_flags_say_and_defaults_otherwise(
    invoke: Invoke, client: Client, topic: str
) -> None:
    flags = ["--ttl", "7d", "--cap-records", "500", "--cap-bytes", "10MiB", "--discard", "reject", "--priority", "-3"]
    done = invoke("topic", "create", topic, *flags, "--durability", "fsync", "--no-dedupe-node")
    assert (done.code, done.out, done.err) == (0, "", f"topics: created the topic {topic}\n")
    config = client.state(topic)["config"]
    expected = {"ttl_ms": 604_800_000, "cap_records": 500, "cap_bytes": 10 << 20, "discard": "reject", "priority": -3}
    assert config | expected | {"durability": "fsync", "dedupe_node": False} == config
    assert config["idempotency_window_ms"] == 120_000


def test_a_queue_takes_all_its_flags(invoke: Invoke, client: Client, topic: str) -> None:
    flags = ["--lease", "5s", "--max-deliveries", 3, "--dead-letter", f"{topic}.dead", "--claim-jitter", "10ms"]
    backoff = '{"initial_ms":10,"factor":3,"max_ms":50,"jitter":0}'
    flags += ["--max-in-flight", 50, "--max-in-flight-per-tag", 1, "--rate", 2.5, "--burst", 9]
    flags += ["--rate-per-tag", 1, "--burst-per-tag", 2]
    assert invoke("topic", "create", topic, "--type", "queue", *flags, "--retry-backoff", backoff).code == 0
    config = client.state(topic)["config"]
    assert (config["type"], config["lease_ms"], config["claim_jitter_ms"]) == ("queue", 5_000, 10)
    assert (config["max_deliveries"], config["dead_letter"]) == (3, f"{topic}.dead")
    assert config["retry_backoff"]["factor"] == 3
    assert (config["max_in_flight"], config["max_in_flight_per_tag"]) == (50, 1)
    assert (config["rate_per_s"], config["burst"]) == (2.5, 9)
    assert (config["rate_per_s_per_tag"], config["burst_per_tag"]) == (1, 2)


def test_a_rate_that_is_no_number_is_refused_before_it_is_sent(invoke: Invoke, topic: str) -> None:
    for wrong in ("fast", "nan", "1e9", ""):
        done = invoke("topic", "create", topic, "--rate", wrong)
        assert (done.code, done.complaint) == (2, f"--rate is {wrong!r}, but must be a number such as 0.5")


def test_creating_what_exists_confirms_it_or_shows_the_difference(invoke: Invoke, client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"ttl_ms": 5000})
    done = invoke("topic", "create", topic, "--ttl", "5s")
    assert (done.code, done.err) == (0, f"topics: the topic {topic} exists already, configured like this\n")
    done = invoke("topic", "create", topic)
    assert done.code == 3
    assert "ttl_ms is 5000, not 0" in done.complaint
    assert done.complaint.endswith(f"; change it with `topics topic edit {topic}`")
    done = invoke("topic", "create", topic, "--type", "queue", "--ttl", "5s")
    assert (done.code, done.complaint) == (
        3,
        f'topic "{topic}" is a log; a topic\'s type cannot change, use another name',
    )
    assert invoke("topic", "create", topic, "--exist-ok", "--ttl", "1h").code == 0
    assert client.state(topic)["config"]["ttl_ms"] == 5000


def test_an_edit_keeps_what_it_does_not_name(invoke: Invoke, client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"ttl_ms": 5000, "cap_records": 7, "durability": "fsync"})
    done = invoke("topic", "edit", topic, "--ttl", "1h", "--durability", "disk")
    assert done.out == "ttl_ms: 5000 -> 3600000\ndurability: fsync -> disk\n"
    config = client.state(topic)["config"]
    assert (config["ttl_ms"], config["cap_records"], config["durability"]) == (3_600_000, 7, "disk")


def test_an_edit_takes_values_away_by_none(invoke: Invoke, client: Client, topic: str) -> None:
    backoff = {"initial_ms": 10, "factor": 2, "max_ms": 50, "jitter": 0}
    config = {"type": "queue", "dead_letter": "d", "priority": 5, "retry_backoff": backoff, "rate_per_s": 3, "burst": 2}
    client.put(f"/v0/topics/{topic}", config)
    none = [
        "--dead-letter",
        "none",
        "--priority",
        "none",
        "--retry-backoff",
        "none",
        "--rate",
        "none",
        "--burst",
        "none",
    ]
    assert invoke("topic", "edit", topic, *none).code == 0
    config = client.state(topic)["config"]
    assert (config["dead_letter"], config["priority"]) == (None, None)
    assert not {"retry_backoff", "rate_per_s", "burst"} & set(config)


def test_a_dry_run_says_the_same_and_changes_nothing(invoke: Invoke, client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {})
    done = invoke("topic", "edit", topic, "--ttl", "1m", "--dry-run", "-o", "json")
    assert done.json == [
        {"topic": topic, "applied": False, "changes": {"ttl_ms": {"from": 0, "to": 60_000}}, "evicts": 0}
    ]
    assert "nothing was changed" in done.err
    assert client.state(topic)["config"]["ttl_ms"] == 0
    assert invoke("topic", "edit", topic, "--ttl", "0").err == f"topics: nothing to change in {topic}\n"


def test_lists_are_aligned_text_or_json(invoke: Invoke, client: Client, topic: str) -> None:
    client.append(f"{topic}-a", 1, 2)
    client.put(f"/v0/topics/{topic}-long-name", {"type": "queue"})
    client.append(f"{topic}-long-name", 1)
    done = invoke("topic", "ls", topic)
    assert [line.split()[:3] for line in done.out.splitlines()] == [
        ["TOPIC", "TYPE", "RECORDS"],
        [f"{topic}-a", "log", "2"],
        [f"{topic}-long-name", "queue", "1"],
    ]
    assert len({line.index("2" if "-a" in line else "1", 14) for line in done.out.splitlines()[1:]}) == 1
    assert [(item["topic"], item["type"]) for item in invoke("topic", "ls", topic, "-o", "json").json] == [
        (f"{topic}-a", "log"),
        (f"{topic}-long-name", "queue"),
    ]


def test_lists_are_searched_and_sorted(invoke: Invoke, client: Client, topic: str) -> None:
    client.append(f"{topic}.b.Orders", 1, 2)
    client.append(f"{topic}.a.orders", 1)
    client.put(f"/v0/topics/{topic}.orders", {"type": "queue"})

    def names(*flags: str) -> list[str]:
        return [
            item["topic"].removeprefix(f"{topic}.") for item in invoke("topic", "ls", topic, "-o", "json", *flags).json
        ]

    assert names("--contains", "ORDERS", "--type", "log") == ["a.orders", "b.Orders"]
    assert names("--sort", "-records") == ["b.Orders", "a.orders", "orders"]
    assert names("--contains", "a.") == ["a.orders"]


def test_info_shows_state_and_what_is_not_default(invoke: Invoke, client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"type": "queue", "ttl_ms": 60_000})
    client.append(topic, "x")
    shown = dict(line.split(maxsplit=1) for line in invoke("topic", "info", topic).out.splitlines())
    assert (shown["type"], shown["seqs"], shown["ttl_ms"]) == ("queue", "1 to 1", "60000")
    assert shown["jobs"] == "1 ready, 0 in flight, 0 delayed, 0 dead"
    assert "discard" not in shown
    assert shown["workers"] == "none has asked since the server started"
    client.post(f"/v0/topics/{topic}/claim", {"node": "w"})
    assert "last asked 20" in invoke("topic", "info", topic).out
    (told,) = invoke("topic", "info", topic, "-o", "json").json
    assert (told["topic"], told["head_seq"], told["config"]["ttl_ms"]) == (topic, 1, 60_000)


def test_looking_does_not_count_as_reading(invoke: Invoke, client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {})
    invoke("topic", "info", topic)
    assert client.state(topic)["last_read_ts"] is None


def test_removing_asks_first_and_tells_what_was_not_there(invoke: Invoke, client: Client, topic: str) -> None:
    client.append(topic, 1)
    refused = invoke("topic", "rm", topic)
    assert (refused.code, refused.complaint) == (2, "removing needs --yes where there is no terminal to confirm on")
    kept = invoke("topic", "rm", topic, "--yes", "--if-empty")
    assert kept.code == 3
    assert client.state(topic)["count"] == 1
    done = invoke("topic", "rm", topic, f"{topic}-nope", "--yes")
    assert (done.code, done.err) == (1, f"topics: removed {topic}\ntopics: there was no topic {topic}-nope\n")
    assert client.get(f"/v0/topics/{topic}").status == 404


def test_values_that_make_no_sense_are_named(invoke: Invoke, topic: str) -> None:
    for flags, words in (
        (["--ttl", "soon"], "--ttl is 'soon', but must be a time like"),
        (["--cap-bytes", "1XB"], "--cap-bytes is '1XB', but must be a size like"),
        (["--cap-records", "many"], "--cap-records is 'many', but must be a whole number"),
        (["--retry-backoff", "{"], "--retry-backoff is not valid JSON"),
        (["--durability", "paper"], "paper"),
    ):
        done = invoke("topic", "create", topic, *flags)
        assert done.code == 2, done
        assert words in done.complaint
    assert invoke("topic", "info", topic).code == 3


def test_a_dry_run_refuses_what_the_server_would_refuse(invoke: Invoke, client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {})
    done = invoke("topic", "edit", topic, "--cap-records", -5, "--dry-run")
    assert (done.code, done.out) == (3, "")
    assert "cap_records" in done.err


def test_an_edit_tells_how_many_records_it_takes(invoke: Invoke, client: Client, topic: str) -> None:
    client.append(topic, *range(10))
    assert "9 records would be evicted" in invoke("topic", "edit", topic, "--cap-records", 1, "--dry-run").err
    assert client.state(topic)["count"] == 10
    assert "9 records were evicted" in invoke("topic", "edit", topic, "--cap-records", 1).err
    assert client.state(topic)["count"] == 1


def test_what_the_server_warns_of_is_printed(invoke: Invoke, topic: str) -> None:
    done = invoke("topic", "create", topic, "--type", "queue", "--max-deliveries", "3")
    assert done.code == 0
    assert "topics: warning: max_deliveries is 3, but dead_letter names no topic" in done.err
    assert done.err.count("warning:") == 1
