"""`topics append`: arguments, files and standard input become records, byte for byte, at a pace, once."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.terminal import Invoke, start
from tests.patience import PATIENCE_S
from tests.serving import Client, ServerProcess

DEADLINE_S = PATIENCE_S


def records(client: Client, topic: str) -> list[dict[str, Any]]:
    return client.diff(topic, include_tags=True, limit=1000)["records"]


def wait_for_records(client: Client, topic: str, count: int) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while client.get(f"/v0/topics/{topic}").status != 200 or client.state(topic)["head_seq"] < count:
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_arguments_are_json_byte_for_byte(invoke: Invoke, client: Client, topic: str) -> None:
    done = invoke("append", topic, '{"b":1.10,"a":[]}', "12", "null", '"quoted"')
    assert done.json == [{"topic": topic, "records": 4, "first_seq": 1, "last_seq": 4, "created": True, "deduped": 0}]
    body = client.post(f"/v0/topics/{topic}/diff", {}).body
    assert b'"data":{"b":1.10,"a":[]}' in body
    assert client.payloads(topic)[1:] == [12, None, "quoted"]


@pytest.mark.parametrize("wrong", ["hello", "nul", '{"a": 1', "NaN", "[Infinity]", "'single'", ""])
@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_an_argument_that_is_not_json_is_refused_by_its_number(
    invoke: Invoke, client: Client, topic: str, wrong: str, flags: tuple[str, ...]
) -> None:
    done = invoke("append", topic, "1", wrong, "3", *flags)
    assert (done.code, done.out) == (2, "")
    assert done.complaint.startswith("record 2 is not valid JSON (")
    assert done.complaint.endswith(f": {wrong}; --text appends it as text")
    assert client.get(f"/v0/topics/{topic}").status == 404, "nothing was appended"


def test_text_takes_anything_as_it_is(invoke: Invoke, client: Client, topic: str) -> None:
    invoke("append", topic, "12", "[1]", "hello", '{"a": 1', "--text")
    assert client.payloads(topic) == ["12", "[1]", "hello", '{"a": 1']


def test_tag_node_and_meta_are_those_of_each_record(invoke: Invoke, client: Client, topic: str) -> None:
    invoke("append", topic, "1", "2", "--tag", "t", "--node", "n", "--meta", '{"trace":"x"}')
    for record in records(client, topic):
        assert (record["$tag"], record["$node"], record["meta"]) == ("t", "n", {"trace": "x"})
    assert "--meta must be a JSON object" in invoke("append", topic, "1", "--meta", "[]").complaint


def test_a_key_makes_a_repeated_append_harmless(invoke: Invoke, client: Client, topic: str, tmp_path: Path) -> None:
    assert invoke("append", topic, "1", "2", "--idempotency-key", "k").json[0]["deduped"] == 0
    again = invoke("append", topic, "1", "2", "--idempotency-key", "k").json[0]
    assert (again["deduped"], again["last_seq"]) == (2, 2)
    (tmp_path / "lines").write_text("\n".join(map(str, range(2_500))))
    for deduped in (0, 2_500):
        done = invoke("append", f"{topic}-f", "--file", tmp_path / "lines", "--idempotency-key", "k2")
        assert done.json[0]["deduped"] == deduped
    assert client.state(f"{topic}-f")["count"] == 2_500


def test_a_job_may_be_delayed_and_unique(invoke: Invoke, client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"type": "queue"})
    for _ in range(2):
        invoke("append", topic, '"job"', "--delay", "1h", "--unique-key", "u")
    assert client.state(topic)["queue"] | {"ready": 0, "delayed": 1} == client.state(topic)["queue"]


def test_no_create_refuses_a_topic_that_is_not_there(invoke: Invoke, topic: str) -> None:
    done = invoke("append", topic, "1", "--no-create")
    assert (done.code, done.complaint.startswith(f'topic "{topic}" does not exist')) == (3, True)


def test_files_are_appended_line_by_line_in_order(invoke: Invoke, client: Client, topic: str, tmp_path: Path) -> None:
    (tmp_path / "one").write_text('{"n":1}\n\n{"n":2}\r\n')
    (tmp_path / "two").write_text('"a text"\n3')
    done = invoke("append", topic, "-f", tmp_path / "one", "-f", tmp_path / "two", "--tag", "t")
    assert done.json[0]["records"] == 4
    assert client.payloads(topic) == [{"n": 1}, {"n": 2}, "a text", 3]
    missing = invoke("append", topic, "-f", tmp_path / "nope")
    assert (missing.code, missing.complaint) == (2, f"cannot read {tmp_path / 'nope'}: No such file or directory")


def test_standard_input_is_one_record_a_line(invoke: Invoke, client: Client, topic: str) -> None:
    lines = "\n".join(json.dumps({"n": number}) for number in range(3_000))
    done = invoke("append", topic, stdin=lines)
    assert done.json == [
        {"topic": topic, "records": 3_000, "first_seq": 1, "last_seq": 3_000, "created": True, "deduped": 0}
    ]
    assert client.diff(topic, from_seq=2_999)["records"][0]["data"] == {"n": 2_999}


def test_lines_of_a_pipe_are_there_before_it_ends_and_survive_an_interrupt(
    server: ServerProcess, client: Client, topic: str
) -> None:
    process = start(server, "append", topic, "--text", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"first\nsecond\nhalf a li")
    process.stdin.flush()
    wait_for_records(client, topic, 2)
    assert client.payloads(topic) == ["first", "second"]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    # The records were there before the answer, and the interrupt may have come between the two.
    assert err in (b"", b"topics: 2 records were appended before this, up to seq 2\n")


def test_nothing_to_append_is_no_error_and_no_topic(invoke: Invoke, client: Client, topic: str) -> None:
    done = invoke("append", topic, stdin="\n\n")
    assert (done.code, done.out, done.err) == (0, "", "topics: nothing to append\n")
    assert client.get(f"/v0/topics/{topic}").status == 404


def test_a_rate_spreads_records_over_time(invoke: Invoke, client: Client, topic: str) -> None:
    invoke("append", topic, *range(6), "--rate", "50")
    times = [record["$ts"] for record in records(client, topic)]
    assert times[-1] - times[0] >= 79, "the first may be late by one step, the others only later"


def test_bytes_that_are_no_text_are_refused_by_line(invoke: Invoke, client: Client, topic: str, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"1\n\xff\xfe\n")
    done = invoke("append", topic, "-f", tmp_path / "binary")
    assert done.code == 2
    assert f"{tmp_path / 'binary'}, line 2 is not UTF-8" in done.complaint
    assert client.get(f"/v0/topics/{topic}").status == 404


def test_wishes_that_exclude_each_other_are_refused(invoke: Invoke, topic: str) -> None:
    assert "exclude each other" in invoke("append", topic, "1", "--text", "--json").complaint
    assert "not both" in invoke("append", topic, "1", "-f", os.devnull).complaint
    assert "standard input" in invoke("append", topic, "--idempotency-key", "k", stdin="1").complaint


def test_a_refused_line_is_named_and_what_came_before_it_is_reported(
    invoke: Invoke, client: Client, topic: str, tmp_path: Path
) -> None:
    lines = tmp_path / "lines"
    lines.write_text("".join(f"{number}\n" for number in range(1_000)) + "\n" + f'"{"x" * 1_100_000}"' + "\n")
    done = invoke("append", topic, "--file", lines)
    assert done.code == 3
    told, complaint = done.err.splitlines()[-2:]
    assert told == "topics: 1000 records were appended before this, up to seq 1000"
    assert complaint.startswith(f"topics: {lines}, line 1002 has 1100002 bytes")
    assert client.state(topic)["head_seq"] == 1_000


def test_a_line_that_is_not_json_is_named_and_nothing_of_its_batch_is_appended(
    invoke: Invoke, client: Client, topic: str, tmp_path: Path
) -> None:
    done = invoke("append", topic, stdin="\n\n1\n\n{bad\n2\n")
    assert (done.code, done.out) == (2, "")
    assert "topics: line 5 is not valid JSON" in done.err
    assert client.get(f"/v0/topics/{topic}").status == 404
    lines = tmp_path / "lines"
    lines.write_text("".join(f"{number}\n" for number in range(1_500)) + "bad\n")
    done = invoke("append", topic, "-f", lines)
    assert done.code == 2
    told, complaint = done.err.splitlines()[-2:]
    assert told == "topics: 1000 records were appended before this, up to seq 1000"
    assert complaint.startswith(f"topics: {lines}, line 1501 is not valid JSON")
    assert client.state(topic)["head_seq"] == 1_000
    assert invoke("append", topic, "-f", lines, "--text").json[0]["records"] == 1_501


EVENT = '{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"b":1.0}}'


def test_cloudevents_become_records_with_their_attributes(invoke: Invoke, client: Client, topic: str) -> None:
    assert invoke("append", topic, EVENT, "--cloudevents", "--tag", "x").json[0]["records"] == 1
    (record,) = records(client, topic)
    meta = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
    assert (record["data"], record["meta"], record["$tag"]) == ({"b": 1.0}, meta, "x")
    wrong = invoke("append", topic, EVENT, '{"id":"2"}', "--cloudevents")
    assert (wrong.code, wrong.complaint.startswith("record 2: specversion is missing")) == (2, True)
    assert "exclude each other" in invoke("append", topic, EVENT, "--cloudevents", "--text").complaint
    assert "--meta is not for" in invoke("append", topic, EVENT, "--cloudevents", "--meta", "{}").complaint
    assert len(records(client, topic)) == 1
