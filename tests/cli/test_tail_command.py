"""`topics tail`: from the end, a place or a time on, one topic or several, in three forms, and live."""

import signal
import time
from typing import IO

from tests.cli.terminal import Done, Invoke, start
from tests.patience import PATIENCE_S
from tests.serving import Client, ServerProcess

DEADLINE_S = PATIENCE_S


def numbers(done: Done) -> list[int]:
    return [line["data"] for line in done.json]


def append_tagged(client: Client, topic: str, *tags: str | None) -> None:
    records = [{"data": number, "tag": tag} for number, tag in enumerate(tags, 1)]
    assert client.post(f"/v0/topics/{topic}", {"records": records}).status == 201


def next_line(stream: IO[bytes] | None) -> str:
    assert stream is not None
    return stream.readline().decode().rstrip("\n")


def test_the_last_ten_records_are_printed_unless_told_otherwise(invoke: Invoke, client: Client, topic: str) -> None:
    client.append(topic, *range(1, 26))
    assert numbers(invoke("tail", topic)) == list(range(16, 26))
    assert numbers(invoke("tail", topic, "-n", 3)) == [23, 24, 25]
    assert numbers(invoke("tail", topic, "-n", 0)) == []
    assert numbers(invoke("tail", topic, "-n", 100)) == list(range(1, 26))


def test_holes_do_not_count_as_records(invoke: Invoke, client: Client, topic: str) -> None:
    append_tagged(client, topic, *["keep"] * 5, *["gone"] * 300, "keep")
    client.post(f"/v0/topics/{topic}/delete", {"match": "gone"})
    assert numbers(invoke("tail", topic, "-n", 3)) == [4, 5, 306]


def test_reading_starts_after_a_seq_or_at_a_time(invoke: Invoke, client: Client, topic: str) -> None:
    client.append(topic, 1, 2, 3)
    assert numbers(invoke("tail", topic, "--from", 1)) == [2, 3]
    assert numbers(invoke("tail", topic, "--from", 0, "--until-end")) == [1, 2, 3]
    time.sleep(0.005)
    last_ts = client.append(topic, 4).json and client.diff(topic, from_seq=3)["records"][0]["$ts"]
    assert numbers(invoke("tail", topic, "--since", last_ts)) == [4]
    assert numbers(invoke("tail", topic, "--since", "1h")) == [1, 2, 3, 4]
    assert numbers(invoke("tail", topic, "--since", "2001-01-01T00:00Z")) == [1, 2, 3, 4]
    assert numbers(invoke("tail", topic, "--since", "2100-01-01")) == []
    assert "exclude" in invoke("tail", topic, "--since", "1h", "--from", 0).complaint
    assert "--since is 'now'" in invoke("tail", topic, "--since", "now").complaint


def test_a_tag_or_the_beginning_of_one_chooses_records(invoke: Invoke, client: Client, topic: str) -> None:
    append_tagged(client, topic, "a-1", None, "b", "a-2", *[None] * 50)
    assert numbers(invoke("tail", topic, "--tag", "a-*")) == [1, 4]
    assert numbers(invoke("tail", topic, "--tag", "a-*", "-n", 1)) == [4]
    assert numbers(invoke("tail", topic, "--tag", "b", "--from", 0)) == [3]


def test_three_forms_of_a_record(invoke: Invoke, client: Client, topic: str) -> None:
    client.post(
        f"/v0/topics/{topic}",
        {"records": [{"data": {"n": 1}, "tag": "t", "meta": {"h": 1}}, {"data": "two\nlines"}], "node": "me"},
    )
    exact, text = client.diff(topic, include_tags=True)["records"]
    assert invoke("tail", topic).json == [exact, text]
    assert invoke("tail", topic, "-o", "raw").out == '{"n": 1}\ntwo lines\n'
    lines = invoke("tail", topic, "-o", "text").out.splitlines()
    assert lines[0].endswith('Z 1 [t] {"n": 1}')
    assert lines[1].endswith("Z 2 two lines")


def test_several_topics_are_mixed_by_time_and_named(invoke: Invoke, client: Client, topic: str) -> None:
    for number in range(6):
        client.append(f"{topic}-{number % 2}", number)
        time.sleep(0.002)
    done = invoke("tail", f"{topic}-0", f"{topic}-1", "--from", 0)
    assert [(line["$topic"], line["data"]) for line in done.json] == [(f"{topic}-{n % 2}", n) for n in range(6)]
    text = invoke("tail", f"{topic}-0", f"{topic}-1", "--from", 0, "-o", "text").out.splitlines()
    assert f" {topic}-1 3 " in text[-1]


def test_lost_records_are_a_line_of_data_or_a_word_aside(invoke: Invoke, client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"cap_records": 2})
    client.append(topic, *range(10))
    first, *rest = invoke("tail", topic, "--from", 0).json
    assert (first["tombstone"]["gap_from"], first["tombstone"]["reason"]) == (1, "cap")
    assert rest[-1]["data"] == 9
    done = invoke("tail", topic, "--from", 0, "-o", "raw")
    assert f"{topic}: records 1 to " in done.err
    assert done.out.splitlines()[-1] == "9"


def test_a_follower_prints_what_comes_and_ends_cleanly(server: ServerProcess, client: Client, topic: str) -> None:
    client.append(topic, "old", "older")
    client.append(f"{topic}-2", "other")
    process = start(server, "tail", "-f", topic, f"{topic}-2", "-n", 1, "-o", "raw")
    assert sorted([next_line(process.stdout), next_line(process.stdout)]) == ["older", "other"]
    client.append(f"{topic}-2", "new")
    assert next_line(process.stdout) == "new"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out, err) == (130, b"", b"")


def test_a_follower_chooses_by_tag_and_says_when_a_topic_goes(
    server: ServerProcess, client: Client, topic: str
) -> None:
    client.append(topic, 0)
    process = start(server, "tail", "-f", topic, "--tag", "x*", "--from", 0)
    for tag in ("a", "x1"):
        client.post(f"/v0/topics/{topic}", {"records": [{"data": 1, "tag": tag}]})
    assert '"$tag":"x1"' in next_line(process.stdout)
    client.delete(f"/v0/topics/{topic}")
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (1, b"")
    assert err.decode().splitlines() == [
        f"topics: {topic}: was removed",
        "topics: there is no topic left to follow",
    ]


def test_a_reader_that_stops_reading_ends_it_quietly(server: ServerProcess, client: Client, topic: str) -> None:
    client.append(topic, *["x" * 1_000] * 1_000)
    process = start(server, "tail", topic, "--from", 0)
    next_line(process.stdout)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(timeout=DEADLINE_S) == 141
    process.stderr.close()


def test_what_is_printed_goes_back_in(invoke: Invoke, client: Client, topic: str) -> None:
    client.append(topic, {"a": 1}, "text", [1.5])
    invoke("import", f"{topic}-copy", stdin=invoke("tail", topic).out)
    assert client.payloads(f"{topic}-copy") == client.payloads(topic)
    client.append(f"{topic}-texts", "text", "12")
    invoke("append", f"{topic}-texts", "--text", stdin=invoke("tail", f"{topic}-texts", "-o", "raw").out)
    assert client.payloads(f"{topic}-texts") == ["text", "12", "text", "12"]


def test_a_topic_that_is_not_there_is_told_at_once(invoke: Invoke, topic: str) -> None:
    done = invoke("tail", "-f", topic)
    assert (done.code, done.complaint) == (3, f'topic "{topic}" does not exist; `topics topic ls` lists the topics')


def test_headers_come_back_as_they_were_sent(invoke: Invoke, client: Client, topic: str) -> None:
    invoke("append", topic, '{"b": 1.10}', "--meta", '{"price": 1.10, "far": 1e400}')
    (line,) = invoke("tail", topic).out.splitlines()
    assert line.endswith(',"data":{"b": 1.10},"meta":{"price": 1.10, "far": 1e400}}')


def test_one_place_to_start_at(invoke: Invoke, client: Client, topic: str) -> None:
    client.append(topic, 1, 2, 3)
    for others in (("--from", 0, "--since", "1m"), ("-n", 1, "--from", 0), ("-n", 1, "--since", "1m")):
        assert invoke("tail", topic, *others).complaint == "--last, --from and --since exclude each other"


def test_records_are_printed_as_cloudevents(invoke: Invoke, client: Client, topic: str) -> None:
    event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "data": {"a": 1}}
    attributes = {name: value for name, value in event.items() if name != "data"}
    client.post(f"/v0/topics/{topic}", {"records": [{"data": {"a": 1}, "meta": attributes}, {"data": "plain"}]})
    sent, made = invoke("tail", topic, "-o", "cloudevents").json
    assert sent == event
    assert (made["id"], made["data"]) == (f"{client.state(topic)['epoch']}-2", "plain")
    shown = client.post(f"/v0/topics/{topic}/diff", {}, headers={"Accept": "application/cloudevents-batch+json"})
    assert shown.json == [sent, made]
