"""`topics queue`: jobs looked at, taken and finished by hand; a command run for each; dead ones brought home."""

import asyncio
import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.terminal import Done, Invoke, run, start
from tests.patience import PATIENCE_S
from tests.serving import Client, ServerProcess
from tests.workers.test_leases import leased
from topics.cli.commands.work import WorkRunner
from topics.workers import App, Retry
from topics.workers.job import Job

DEADLINE_S = PATIENCE_S


@pytest.fixture
def queue(client: Client, topic: str) -> str:
    """Two deliveries, then the dead letters."""
    config = {"type": "queue", "lease_ms": 30_000, "max_deliveries": 2, "dead_letter": f"{topic}.dead"}
    assert client.put(f"/v0/topics/{topic}", config).status == 201
    return topic


def counters(client: Client, queue: str) -> dict[str, Any]:
    return client.state(queue)["queue"]


def deadlines_of(client: Client, queue: str) -> list[int]:
    leases = client.get(f"/v0/topics/{queue}/leases").json["leases"]
    return [lease["deadline"] for lease in sorted(leases, key=lambda lease: lease["$seq"])]


def work(server: ServerProcess, queue: str, command: str, *flags: object, **env: str) -> Done:
    return run(server, "queue", "work", queue, "--exec", command, "--until-empty", *flags, **env)


def test_peeking_takes_nothing_and_tells_who_holds_what(invoke: Invoke, client: Client, queue: str) -> None:
    client.append(queue, {"n": 1}, "x" * 100)
    client.post(f"/v0/topics/{queue}/claim", {"node": "w1"})
    lines = invoke("queue", "peek", queue).out.splitlines()
    assert lines[0].split() == ["SEQ", "HELD", "BY", "TAG", "DATA"]
    assert lines[1].split() == ["1", "w1", "-", '{"n":', "1}"]
    assert lines[2].endswith("x" * 59 + "…")
    assert [job["$seq"] for job in invoke("queue", "peek", queue, "-n", 1, "-o", "json").json] == [1]
    assert counters(client, queue) | {"ready": 1, "in_flight": 1} == counters(client, queue)


def test_peeking_at_dead_letters_tells_why_they_are_there(invoke: Invoke, client: Client, queue: str) -> None:
    client.append(queue, {"n": 1}, {"n": 2}, {"n": 3})
    invoke("queue", "claim", queue, "-n", 3)
    invoke("queue", "nack", queue, 1, "--dead", "--error", "no such\nuser")
    invoke("queue", "nack", queue, 2, "--dead")
    client.append(f"{queue}.dead", "by hand")
    lines = invoke("queue", "peek", f"{queue}.dead").out.splitlines()
    assert lines[0].split() == ["SEQ", "FROM", "DELIVERIES", "REASON", "TAG", "DATA"]
    assert lines[1].split() == ["1", queue, "1", "no", "such", "user", "-", '{"n":', "1}"]
    assert lines[2].split() == ["2", queue, "1", "was", "never", "acked", "-", '{"n":', "2}"]
    assert lines[3].split() == ["3", "-", "-", "-", "-", "by", "hand"]
    assert invoke("queue", "peek", f"{queue}.dead", "-n", 1, "-o", "json").json[0]["meta"]["$dead_letter_from"] == queue
    text = invoke("tail", f"{queue}.dead", "-o", "text").out.splitlines()
    assert text[0].endswith(f' 1 (dead letter of {queue} after 1 delivery: no such user) {{"n": 1}}')
    assert text[2].endswith(" 3 by hand")


def test_the_dead_are_counted_until_they_go_home(invoke: Invoke, client: Client, queue: str) -> None:
    client.append(queue, 1, 2)
    invoke("queue", "claim", queue, "-n", 2)
    invoke("queue", "nack", queue, 1, 2, "--dead")
    assert "0 ready, 0 in flight, 0 delayed, 2 dead\n" in invoke("topic", "info", queue).out
    invoke("queue", "redrive", f"{queue}.dead", "--limit", 1)
    assert "1 ready, 0 in flight, 0 delayed, 1 dead\n" in invoke("topic", "info", queue).out


def test_a_claimed_job_is_finished_by_its_seq(invoke: Invoke, client: Client, queue: str) -> None:
    client.append(queue, "a", "b", "c")
    jobs = invoke("queue", "claim", queue, "-n", 2, "--lease", "5m").json
    assert [(job["$seq"], job["data"], job["deliveries"]) for job in jobs] == [(1, "a", 1), (2, "b", 1)]
    assert jobs[0]["deadline"] - time.time() * 1000 > 200_000
    assert invoke("queue", "ack", queue, 1).json == [{"acked": 1, "skipped": []}]
    done = invoke("queue", "ack", queue, 1, 3)
    assert (done.code, done.json) == (1, [{"acked": 0, "skipped": [1, 3]}])
    assert done.err == "topics: not held here (any more): 1, 3\n"
    assert counters(client, queue) | {"ready": 1, "in_flight": 1} == counters(client, queue)


def test_a_job_given_back_comes_again_later_or_is_dead(invoke: Invoke, client: Client, queue: str) -> None:
    client.append(queue, "a", "b")
    invoke("queue", "claim", queue, "-n", 2)
    assert invoke("queue", "nack", queue, 1, "--delay", "1h").code == 0
    assert invoke("queue", "nack", queue, 2, "--dead", "--error", "no good").code == 0
    assert counters(client, queue) | {"delayed": 1, "dead_lettered": 1} == counters(client, queue)
    (dead,) = client.diff(f"{queue}.dead")["records"]
    assert dead["meta"]["$dead_letter_error"] == "no good"


def test_an_empty_queue_is_exit_code_1_after_the_wait(invoke: Invoke, queue: str) -> None:
    begun_s = time.monotonic()
    done = invoke("queue", "claim", queue, "--wait", "200ms")
    assert (done.code, done.out, done.err) == (1, "", "")
    assert time.monotonic() - begun_s >= 0.2


def test_leases_are_listed_soonest_to_run_out_first(invoke: Invoke, client: Client, queue: str) -> None:
    client.append(queue, 1, 2)
    for node, lease_ms in (("late", 60_000), ("soon", 10_000)):
        client.post(f"/v0/topics/{queue}/claim", {"node": node, "lease_ms": lease_ms})
    assert [lease["node"] for lease in invoke("queue", "leases", queue, "-o", "json").json] == ["soon", "late"]
    assert [line.split()[1] for line in invoke("queue", "leases", queue).out.splitlines()[1:]] == ["soon", "late"]


def test_a_paused_queue_hands_out_nothing_until_it_is_resumed(invoke: Invoke, client: Client, queue: str) -> None:
    client.append(queue, 1)
    assert invoke("queue", "pause", queue).err == f"topics: {queue} is paused\n"
    assert invoke("queue", "claim", queue).code == 1
    assert invoke("queue", "resume", queue).code == 0
    assert invoke("queue", "claim", queue).code == 0


def test_dead_letters_are_sent_home(invoke: Invoke, client: Client, queue: str) -> None:
    client.post(f"/v0/topics/{queue}", {"records": [{"data": 1, "tag": "a-1"}, {"data": 2, "tag": "b"}]})
    invoke("queue", "claim", queue, "-n", 2)
    invoke("queue", "nack", queue, 1, 2, "--dead")
    dry = invoke("queue", "redrive", f"{queue}.dead", "--tag", "a-*", "--dry-run")
    assert (dry.json[0]["moved"], counters(client, queue)["ready"]) == (1, 0)
    done = invoke("queue", "redrive", f"{queue}.dead", "--tag", "a-*")
    assert done.json == [{"moved": 1, "to": {queue: 1}, "skipped": 0, "more": False}]
    assert counters(client, queue)["ready"] == 1


def test_a_redrive_of_the_queue_itself_names_the_topic_of_its_dead_letters(
    invoke: Invoke, client: Client, queue: str
) -> None:
    client.append(queue, 1)
    invoke("queue", "claim", queue)
    invoke("queue", "nack", queue, 1, "--dead")
    done = invoke("queue", "redrive", queue)
    assert (done.code, done.json[0]["moved"]) == (0, 0)
    assert done.err == (
        f"topics: there is nothing to move in {queue}; its own dead letters are in {queue}.dead: "
        f"topics queue redrive {queue}.dead\n"
    )
    assert invoke("queue", "redrive", f"{queue}.dead").err == ""
    assert invoke("queue", "redrive", f"{queue}.dead").err == "", "it has none, and is no queue with a topic for them"


def test_a_log_is_no_queue(invoke: Invoke, client: Client, topic: str) -> None:
    client.append(topic, 1)
    done = invoke("queue", "claim", topic)
    assert done.code == 3
    assert "is not a queue; create a queue with" in done.complaint


# --- work ---


def test_the_exit_code_of_the_command_decides(server: ServerProcess, client: Client, queue: str) -> None:
    client.append(queue, "fine", "poison", "flaky", "hopeless")
    command = """
        read job
        case "$job" in
            '"poison"') echo 'cannot ever' >&2; exit 65 ;;
            '"hopeless"') echo 'once more' >&2; exit 1 ;;
            '"flaky"') [ "$TOPICS_JOB_DELIVERIES" -gt 1 ] || exit 7 ;;
        esac
        echo "$TOPICS_JOB_QUEUE $TOPICS_JOB_SEQ $job"
    """
    done = work(server, queue, command, "--retry-delay", "0")
    assert done.code == 0
    assert sorted(done.out.splitlines()) == [f'{queue} 1 "fine"', f'{queue} 3 "flaky"']
    lines = done.err.splitlines()
    assert lines[-1] == "topics: 2 done, 2 retried, 1 dead, 1 rejected"
    moved = f"moved to {queue}.dead"
    assert f"topics: {queue}/2, delivery 1: rejected, {moved}: exit code 65: cannot ever" in lines
    assert f"topics: {queue}/3, delivery 1: will be delivered again at once: exit code 7" in lines
    assert f"topics: {queue}/4, delivery 2: the last delivery failed, {moved}: exit code 1: once more" in lines
    dead = {record["data"]: record["meta"] for record in client.diff(f"{queue}.dead")["records"]}
    assert dead["poison"]["$dead_letter_error"] == "exit code 65: cannot ever"
    assert dead["poison"]["$dead_letter_deliveries"] == 1
    assert (dead["hopeless"]["$dead_letter_deliveries"], set(dead)) == (2, {"poison", "hopeless"})


def test_a_command_gets_the_payload_byte_for_byte_and_what_belongs_to_it(
    server: ServerProcess, client: Client, queue: str, tmp_path: Path
) -> None:
    payload = b'{"b":1.10, "text":"caf\xc3\xa9"}'
    body = b'{"records":[{"data":%b,"tag":"t 1","meta":{"k":"v"}}]}' % payload
    client.post(f"/v0/topics/{queue}", body=body, headers={"Content-Type": "application/json"})
    out = tmp_path / "out"
    done = work(server, queue, f'cat > {out}; echo "$TOPICS_JOB_TAG|$TOPICS_JOB_META|$TOPICS_JOB_DELIVERIES"')
    assert out.read_bytes() == payload + b"\n"
    tag, meta, deliveries = done.out.strip().split("|")
    assert (tag, json.loads(meta), deliveries) == ("t 1", {"k": "v"}, "1")


@pytest.mark.slow
def test_jobs_run_beside_each_other_and_their_leases_are_extended(
    server: ServerProcess, client: Client, queue: str, tmp_path: Path
) -> None:
    """Each job waits for the others to have started, and all of them until their leases have been extended."""
    client.append(queue, 1, 2, 3)
    command = f"touch {tmp_path}/$TOPICS_JOB_SEQ; while [ $(ls {tmp_path} | wc -l) -lt 4 ]; do sleep 0.05; done"
    process = start(server, "queue", "work", queue, "--exec", command, "-c", "3", "--lease", "5s", "--until-empty")
    wait_for(lambda: len(list(tmp_path.iterdir())) == 3)
    deadlines = deadlines_of(client, queue)
    wait_for(lambda: all(new > old for new, old in zip(deadlines_of(client, queue), deadlines, strict=True)))
    (tmp_path / "go").touch()
    _, err = process.communicate(timeout=DEADLINE_S)
    done = Done(process.wait(), "", err.decode())
    assert done.err.splitlines()[-1] == "topics: 3 done, 0 retried, 0 dead, 0 rejected"


@pytest.mark.slow
def test_a_command_need_not_read_its_job(server: ServerProcess, client: Client, queue: str) -> None:
    client.append(queue, "x" * 500_000)
    assert "1 done" in work(server, queue, "true").err


@pytest.mark.slow
def test_a_failed_job_rests_as_long_as_requested(server: ServerProcess, client: Client, queue: str) -> None:
    client.append(queue, 1)
    process = start(server, "queue", "work", queue, "--exec", "exit 1", "--retry-delay", "1h")
    wait_for(lambda: counters(client, queue)["delayed"] == 1)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0


def test_a_command_that_cannot_be_run_stops_the_worker_and_not_the_jobs(
    server: ServerProcess, client: Client, queue: str
) -> None:
    client.append(queue, 1, 2)
    done = run(server, "queue", "work", queue, "--exec", "/no/such/program")
    assert done.code == 2
    assert "cannot run '/no/such/program'" in done.err.splitlines()[-1]
    assert counters(client, queue)["ready"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_running_command_finish(
    server: ServerProcess, client: Client, queue: str, tmp_path: Path, number: signal.Signals
) -> None:
    client.append(queue, 1, 2)
    started, go = tmp_path / "started", tmp_path / "go"
    command = f"touch {started}; while [ ! -e {go} ]; do sleep 0.02; done"
    process = start(server, "queue", "work", queue, "--exec", command)
    wait_for(started.exists)
    process.send_signal(number)
    assert process.stderr is not None
    while b"stopping" not in process.stderr.readline():
        pass
    go.touch()
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert err.decode().splitlines()[-1] == "topics: 1 done, 0 retried, 0 dead, 0 rejected"
    assert counters(client, queue) | {"ready": 1, "in_flight": 0} == counters(client, queue)


@pytest.mark.slow
def test_when_the_grace_is_over_commands_end_and_jobs_go_back(
    server: ServerProcess, client: Client, queue: str, tmp_path: Path
) -> None:
    client.append(queue, 1)
    pid = tmp_path / "pid"
    command = f"echo $$ > {pid}.new; mv {pid}.new {pid}; sleep 1000"
    process = start(server, "queue", "work", queue, "--exec", command, "--grace", "100ms")
    wait_for(pid.exists)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=DEADLINE_S)
    assert counters(client, queue) | {"ready": 1, "in_flight": 0} == counters(client, queue)
    wait_for(lambda: not is_alive(pid.read_text().strip()))


def test_a_second_signal_ends_the_command_and_its_children(
    server: ServerProcess, client: Client, queue: str, tmp_path: Path
) -> None:
    client.append(queue, 1)
    pids = tmp_path / "pids"
    command = f"trap '' TERM INT; sleep 1000 & echo $$ $! > {pids}.new; mv {pids}.new {pids}; wait; wait; sleep 1000"
    process = start(server, "queue", "work", queue, "--exec", command, "--grace", "1h")
    wait_for(pids.exists)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while b"stopping" not in (line := process.stderr.readline()):
        assert line
    assert all(map(is_alive, pids.read_text().split()))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == -signal.SIGINT
    wait_for(lambda: not any(map(is_alive, pids.read_text().split())))


def test_a_command_that_has_only_just_started_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second signal may come before the loop knows of the process."""
    runner = WorkRunner(App("http://127.0.0.1:1"), "sleep 1000", None)
    start_process = asyncio.create_subprocess_exec

    async def start_and_signal(*command: Any, **options: Any) -> Any:
        process = await start_process(*command, **options)
        runner.kill()
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_and_signal)
    job = Job("q", leased(1))
    with pytest.raises(Retry, match=f"exit code {128 + signal.SIGKILL}"):
        asyncio.run(runner.run(job))


def test_a_failed_job_rests_a_second_when_nobody_says_how_long(
    server: ServerProcess, client: Client, topic: str
) -> None:
    client.put(f"/v0/topics/{topic}", {"type": "queue"})
    client.append(topic, 1)
    process = start(server, "queue", "work", topic, "--exec", "exit 1")
    assert process.stderr is not None
    while b"will be delivered again in " not in (line := process.stderr.readline()):
        assert line
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=DEADLINE_S)
    assert re.search(rb"/1, delivery 1: will be delivered again in (0\.[7-9]\d*|1) s: exit code 1$", line.strip())


def test_a_queue_that_is_not_there_is_told_at_once(invoke: Invoke, topic: str) -> None:
    done = invoke("queue", "work", topic, "--exec", "true")
    assert (done.code, done.complaint.startswith(f'topic "{topic}" does not exist')) == (3, True)


def is_alive(pid: str) -> bool:
    """One that is dead and not yet asked for by its parent is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(happened: Any) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not happened():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_a_claimed_job_is_printed_byte_for_byte(invoke: Invoke, client: Client, queue: str) -> None:
    invoke("append", queue, '{"total": 9.90, "far": 1e400}', "--meta", '{"price": 1.10}', "--tag", "é")
    line = invoke("queue", "claim", queue).out
    assert line.endswith(',"$tag":"é","data":{"total": 9.90, "far": 1e400},"meta":{"price": 1.10}}\n')


def test_jobs_are_cancelled_by_their_seqs(invoke: Invoke, client: Client, queue: str) -> None:
    client.append(queue, 1, 2, 3)
    client.post(f"/v0/topics/{queue}/claim", {"node": "w"})
    done = invoke("queue", "cancel", queue, 1, 2)
    assert (done.code, counters(client, queue)["ready"], counters(client, queue)["in_flight"]) == (0, 1, 0)
    again = invoke("queue", "cancel", queue, 1, 3)
    assert again.code == 1
    assert "1" in again.complaint
