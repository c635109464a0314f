"""`topics export` and `topics import`: the same records on the other side, also when either is killed in the middle."""

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.terminal import Invoke, run, start
from tests.patience import PATIENCE_S
from tests.serving import Client, ServerProcess, serving

DEADLINE_S = PATIENCE_S
MANY = 60_000


def fill(client: Client, topic: str, count: int, size: int = 100) -> None:
    """Records that differ in everything a record may have."""
    for first in range(0, count, 10_000):
        records: list[dict[str, Any]] = []
        for number in range(first, min(first + 10_000, count)):
            record: dict[str, Any] = {"data": {"n": number, "pad": "x" * (number % size)}}
            if number % 3 == 0:
                record["tag"] = f"tag-{number % 7}"
            if number % 5 == 0:
                record |= {"node": f"node-{number % 2}", "meta": {"number": number}}
            records.append(record)
        assert client.post(f"/v0/topics/{topic}?return_seqs=false", {"records": records}).status in (200, 201)


def contents(client: Client, topic: str) -> list[dict[str, Any]]:
    """Every record, without the fields that an import assigns."""
    found: list[dict[str, Any]] = []
    cursor = 0
    while True:
        page = client.diff(topic, from_seq=cursor, limit=1000, include_tags=True, max_batch_bytes=8 << 20)
        found += page["records"]
        cursor = page["next_from_seq"]
        if page["caught_up"]:
            return [{name: value for name, value in one.items() if name not in ("$seq", "$ts")} for one in found]


def wait_until(happened: Any) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not happened():
        assert time.monotonic() < end_s
        time.sleep(0.001)


def test_an_export_holds_what_the_server_shows_byte_for_byte(invoke: Invoke, client: Client, topic: str) -> None:
    body = b'{"records":[{"data":{"b":1.10,"a":123456789012345678901},"tag":"t","meta":{"x":1.0}},{"data":null}]}'
    client.post(f"/v0/topics/{topic}", body=body, headers={"Content-Type": "application/json"})
    lines = invoke("export", topic).out.splitlines()
    assert '"data":{"b":1.10,"a":123456789012345678901}' in lines[0]
    assert '"meta":{"x":1.0}' in lines[0]
    assert [json.loads(line)["$seq"] for line in lines] == [1, 2]


def test_a_topic_comes_back_the_same(invoke: Invoke, client: Client, topic: str, tmp_path: Path) -> None:
    fill(client, topic, 2_500)
    path = tmp_path / "t.ndjson"
    exported = invoke("export", topic, path)
    assert (exported.code, exported.out, exported.err) == (0, "", "")
    done = invoke("import", f"{topic}-copy", path)
    assert done.json == [{"topic": f"{topic}-copy", "records": 2_500, "first_seq": 1, "last_seq": 2_500}]
    assert contents(client, f"{topic}-copy") == contents(client, topic)
    assert sorted(os.listdir(tmp_path)) == ["t.ndjson", "t.ndjson.imported.json"]


def test_an_import_that_is_done_is_not_done_again_unless_asked_for(
    invoke: Invoke, client: Client, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.ndjson"
    path.write_text('{"data":1}\n{"data":2}\n')
    assert invoke("import", topic, path).json[0]["records"] == 2
    done = invoke("import", topic, path)
    assert (done.code, done.out) == (0, "")
    told = f"topics: {path} was imported into {topic} before (2 records, seqs 1 to 2); --again imports it once more\n"
    assert done.err == told
    assert client.payloads(topic) == [1, 2]
    assert invoke("import", topic, path, "--again").json[0] == {
        "topic": topic,
        "records": 2,
        "first_seq": 3,
        "last_seq": 4,
    }
    assert client.payloads(topic) == [1, 2, 1, 2]
    assert "exclude each other" in invoke("import", topic, path, "--again", "--from-line", 1).complaint


def test_another_topic_or_one_made_anew_has_none_of_an_import(
    invoke: Invoke, client: Client, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.ndjson"
    path.write_text('{"data":1}\n')
    for name in (topic, f"{topic}-other"):
        assert invoke("import", name, path).json[0]["records"] == 1
    for name in (topic, f"{topic}-other"):
        assert "imported into" in invoke("import", name, path).err
    client.delete(f"/v0/topics/{topic}")
    assert invoke("import", topic, path).json[0]["records"] == 1
    assert client.payloads(f"{topic}-other") == [1]


def test_a_file_that_has_grown_since_its_import_is_not_imported_twice_by_mistake(
    invoke: Invoke, client: Client, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.ndjson"
    path.write_text('{"data":1}\n{"data":2}\n')
    invoke("import", topic, path)
    with open(path, "a") as file:
        file.write('{"data":3}\n')
    done = invoke("import", topic, path)
    assert done.code == 1
    assert "has grown since; --from-line 3 imports what was added" in done.complaint
    assert invoke("import", topic, path, "--from-line", 3).code == 0
    assert client.payloads(topic) == [1, 2, 3]
    assert "imported into" in invoke("import", topic, path).err
    path.write_text('{"data":4}\n')
    assert invoke("import", topic, path).json[0]["records"] == 1, "it is another file by that name"
    (tmp_path / "t.ndjson.imported.json").write_text("no json")
    assert "cannot be read" in invoke("import", topic, path).complaint


def test_a_pipe_leads_from_one_topic_into_another(server: ServerProcess, client: Client, topic: str) -> None:
    fill(client, topic, 1_200)
    export = start(server, "export", topic)
    assert export.stdout is not None
    done = start(server, "import", f"{topic}-copy", stdin=export.stdout.fileno())
    export.stdout.close()
    out, _ = done.communicate(timeout=DEADLINE_S)
    assert export.wait(timeout=DEADLINE_S) == 0
    assert json.loads(out)["records"] == 1_200
    assert contents(client, f"{topic}-copy") == contents(client, topic)
    assert export.stderr is not None
    export.stderr.close()


def test_a_stretch_is_chosen_by_seq_and_time(invoke: Invoke, client: Client, topic: str) -> None:
    client.append(topic, *range(1, 11))
    seqs = [line["$seq"] for line in invoke("export", topic, "--from", 3, "--to", 7).json]
    assert seqs == [4, 5, 6, 7]
    assert len(invoke("export", topic, "--since", "1h").json) == 10
    assert invoke("export", topic, "--since", "2100-01-01").out == ""
    assert invoke("export", topic, "--from", 10).out == ""


def test_a_gap_is_a_line_in_its_place_that_an_import_mentions(
    server: ServerProcess, invoke: Invoke, client: Client, topic: str, tmp_path: Path
) -> None:
    client.put(f"/v0/topics/{topic}", {"cap_records": 3})
    client.append(topic, *range(10))
    path = tmp_path / "capped"
    assert f"{topic}: records 1 to " in invoke("export", topic, path).err
    first, *rest = [json.loads(line) for line in path.read_text().splitlines()]
    assert (list(first), rest[-1]["data"]) == (["tombstone"], 9)
    done = invoke("import", f"{topic}-copy", path)
    assert done.json[0]["records"] == len(rest)
    assert "line 1 is a gap" in done.err


def test_a_file_that_is_there_is_not_overwritten(invoke: Invoke, client: Client, topic: str, tmp_path: Path) -> None:
    client.append(topic, 1)
    path = tmp_path / "kept"
    path.write_text("precious")
    done = invoke("export", topic, path)
    assert (done.code, done.complaint) == (2, f"{path} exists; --force replaces it")
    assert path.read_text() == "precious"
    assert invoke("export", topic, path, "--force").code == 0
    assert json.loads(path.read_text())["data"] == 1


def test_an_export_continues_after_the_last_whole_line(
    invoke: Invoke, client: Client, topic: str, tmp_path: Path
) -> None:
    fill(client, topic, 300)
    whole = invoke("export", topic).out.encode()
    path, partial = tmp_path / "e", tmp_path / "e.partial"
    state = client.state(topic)
    notes = {"topic": topic, "epoch": state["epoch"], "from_seq": 0, "to_seq": 300, "meta": True}
    client.append(topic, "after the export began")
    for size in (0, 1, 100, len(whole) // 2, len(whole) - 1, len(whole)):
        partial.write_bytes(whole[:size])
        (tmp_path / "e.partial.json").write_text(json.dumps(notes))
        assert invoke("export", topic, path).code == 0
        assert path.read_bytes() == whole, size
        assert os.listdir(tmp_path) == ["e"]
        path.unlink()


def test_an_export_does_not_mix_with_another_one(invoke: Invoke, client: Client, topic: str, tmp_path: Path) -> None:
    client.append(topic, 1, 2)
    epoch = client.state(topic)["epoch"]
    client.delete(f"/v0/topics/{topic}")
    client.append(topic, "other", "records")
    notes = {"topic": topic, "epoch": epoch, "from_seq": 0, "to_seq": 2, "meta": True}
    (tmp_path / "e.partial").write_text("")
    (tmp_path / "e.partial.json").write_text(json.dumps(notes))
    done = invoke("export", topic, tmp_path / "e")
    assert done.code == 1
    assert "is part of another export (epoch was" in done.complaint
    assert invoke("export", topic, tmp_path / "e", "--force").code == 0


@pytest.mark.crash
@pytest.mark.slow
def test_killed_exports_end_as_one_uninterrupted_would(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        client = server.client()
        fill(client, "t", MANY, size=2_000)
        path, partial = tmp_path / "killed", tmp_path / "killed.partial"
        kills = 0
        while not path.exists():
            before = partial.stat().st_size if partial.exists() else 0
            process = start(server, "export", "t", path)
            enough = before + 100_000
            wait_until(lambda: path.exists() or (partial.exists() and partial.stat().st_size > enough))  # noqa: B023
            process.kill()
            process.communicate()
            kills += not path.exists()
            if kills == 4:
                assert run(server, "export", "t", path).code == 0
        assert kills == 4
        assert run(server, "export", "t", tmp_path / "whole").code == 0
        assert path.read_bytes() == (tmp_path / "whole").read_bytes()


# --- import ---


def test_a_file_of_plain_payloads_is_led_to_append(invoke: Invoke, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "plain"
    for text, words in (('{"data":1}\n{"n":1}\n', "line 2 has no data"), ("nothing\n", "line 1 cannot be imported")):
        path.write_text(text)
        done = invoke("import", topic, path, "--from-line", 1)
        assert done.code == 2
        assert words in done.complaint
        assert "topics append TOPIC --file FILE" in done.complaint
    assert f"cannot use {tmp_path / 'no'}" in invoke("import", topic, tmp_path / "no").complaint


def test_a_cut_file_is_told_with_the_line_to_go_on_at(
    invoke: Invoke, client: Client, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "cut"
    path.write_text("".join(f'{{"data":{number}}}\n' for number in range(25)) + '{"da')
    done = invoke("import", topic, path, "--batch", 10)
    assert done.code == 1
    way_on = "20 records were imported: fix the file, then continue with --from-line 21"
    assert done.complaint == f"line 26 is truncated: the file is incomplete; {way_on}"
    path.write_text("".join(f'{{"data":{number}}}\n' for number in range(25)))
    assert invoke("import", topic, path, "--batch", 10, "--from-line", 21).code == 0
    assert [record["data"] for record in client.diff(topic)["records"]] == list(range(25))


def test_lines_need_no_dollar(invoke: Invoke, client: Client, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "own"
    path.write_text('{"data":1,"tag":"t","node":"n","meta":{"m":1}}\n\n{"data":2}')
    assert invoke("import", topic, path).json[0]["records"] == 2
    assert contents(client, topic) == [{"data": 1, "$tag": "t", "$node": "n", "meta": {"m": 1}}, {"data": 2}]


def test_an_import_begins_where_requested(invoke: Invoke, client: Client, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("".join(json.dumps({"data": number}) + "\n" for number in range(1, 11)))
    invoke("import", topic, path, "--from-line", 8)
    assert client.payloads(topic) == [8, 9, 10]


def interrupted(server: ServerProcess, topic: str, path: Path, at_record: int) -> None:
    """Kill an import once the topic has that many records."""
    client = server.client()
    process = start(server, "import", topic, path, "--batch", 100)
    wait_until(
        lambda: (state := client.get(f"/v0/topics/{topic}")).status == 200 and state.json["head_seq"] >= at_record
    )
    process.kill()
    process.communicate()


@pytest.mark.crash
@pytest.mark.slow
def test_killed_imports_append_every_record_once_and_in_order(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        client = server.client()
        fill(client, "t", MANY)
        path = tmp_path / "t.ndjson"
        run(server, "export", "t", path)
        for at_record in (100, 4_000, 9_000, 20_000):
            interrupted(server, "copy", path, at_record)
        done = run(server, "import", "copy", path)
        assert done.code == 0
        assert re.search(r"resuming at line \d+, after \d+ records", done.err)
        assert done.json[0]["records"] == MANY
        assert contents(client, "copy") == contents(client, "t")
        assert not (tmp_path / "t.ndjson.importing.json").exists()


def importing(
    invoke: Invoke, topic: str, path: Path, batches_saved: int, batches_sent: int, age_ms: int
) -> dict[str, Any]:
    """The notes of an import that was killed after `batches_sent`, of which it has noted `batches_saved`."""
    lines = path.read_bytes().splitlines(keepends=True)
    for sent in range(batches_saved, batches_sent):
        first = sent * 10
        (path.parent / "piece").write_bytes(b"".join(lines[first : first + 10]))
        assert invoke("import", topic, path.parent / "piece").code == 0
    offset = sum(map(len, lines[: batches_saved * 10]))
    state = invoke("topic", "info", topic, "-o", "json").json[0]
    return {
        "topic": topic,
        "run": "r1",
        "size_bytes": path.stat().st_size,
        "batch_records": 10,
        "offset": offset,
        "line": batches_saved * 10,
        "records": batches_saved * 10,
        "epoch": state["epoch"],
        "first_seq": 1,
        "last_seq": batches_saved * 10,
        "saved_ms": time.time_ns() // 1_000_000 - age_ms,
    }


@pytest.mark.parametrize("sent", [2, 3, 4])
def test_when_keys_are_forgotten_the_topic_tells_what_got_through(
    invoke: Invoke, client: Client, topic: str, tmp_path: Path, sent: int
) -> None:
    path = tmp_path / "f"
    path.write_text("".join(json.dumps({"data": number // 7, "tag": f"t{number}"}) + "\n" for number in range(95)))
    (tmp_path / "start").write_text("".join(path.read_text().splitlines(keepends=True)[:20]))
    invoke("import", topic, tmp_path / "start")
    notes = importing(invoke, topic, path, 2, sent, age_ms=600_000)
    client.append(topic, "somebody else's")
    (tmp_path / "f.importing.json").write_text(json.dumps(notes))
    done = invoke("import", topic, path)
    assert done.code == 0
    assert f"resuming at line {sent * 10 + 1}" in done.err
    ours = [record for record in contents(client, topic) if "$tag" in record]
    assert [record["$tag"] for record in ours] == [f"t{number}" for number in range(95)]


def test_when_the_topic_cannot_tell_the_user_decides(
    invoke: Invoke, client: Client, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "f"
    path.write_text("".join(json.dumps({"data": number}) + "\n" for number in range(40)))
    client.put(f"/v0/topics/{topic}", {"cap_records": 5})
    notes = importing(invoke, topic, path, 0, 2, age_ms=600_000)
    (tmp_path / "f.importing.json").write_text(json.dumps(notes))
    done = invoke("import", topic, path)
    assert done.code == 1
    assert "it is unknown whether line 1 and those after it were appended; choose with --from-line" in done.complaint


def test_an_import_of_another_file_or_topic_does_not_go_on(
    invoke: Invoke, client: Client, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "f"
    path.write_text("".join(json.dumps({"data": number}) + "\n" for number in range(40)))
    notes = importing(invoke, topic, path, 0, 1, age_ms=0)
    changed = notes | {"epoch": notes["epoch"] + 1}
    for wrong, words in (
        (notes | {"topic": "other"}, "the topic was other"),
        (notes | {"size_bytes": 1}, "the file has changed"),
        (changed, "the topic was removed meanwhile"),
    ):
        (tmp_path / "f.importing.json").write_text(json.dumps(wrong))
        done = invoke("import", topic, path)
        assert done.code == 1
        assert words in done.complaint
    assert client.state(topic)["head_seq"] == 10


def test_an_interrupted_import_says_how_to_go_on(
    server: ServerProcess, client: Client, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "many"
    fill(client, topic, 20_000)
    run(server, "export", topic, path)
    process = start(server, "import", f"{topic}-copy", path, "--batch", 1)
    wait_until(lambda: client.get(f"/v0/topics/{topic}-copy").status == 200)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert re.fullmatch(r"topics: interrupted after \d+ records; run the same command to resume\n", err.decode())
