"""Every command once as a process of its own: what is installed starts, knows its environment, ends as it should."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.terminal import Done, run
from tests.groups.consumers import SECRET, Consumer, token
from tests.serving import ServerProcess, serving
from topics.cli.command_table import TABLE, root_command

# A script: each line a command, the exit code if it is not 0, and words that it must print.
SCRIPT = """
topic create log --ttl 1h                        | created the topic log
topic create jobs --type queue --dead-letter dead | created the queue jobs
topic edit log --ttl 2h --dry-run                | ttl_ms: 3600000 -> 7200000
topic ls                                         | TOPIC
topic info jobs                                  | 0 ready
append log 1 2 3 --tag t                         | "last_seq":3
tail log -o raw                                  | 3
export log log.ndjson                            |
import copy log.ndjson                           | "records":3
server status                                    | TOPICS
append jobs 1 2 3 4                              | "records":4
queue peek jobs                                  | HELD BY
queue claim jobs --count 2                       | "lease_id"
queue leases jobs                                | cli@
queue ack jobs 1                                 | "acked":1
queue nack jobs 2 --dead                         | "nacked":1
queue jobs jobs --state dead                     | DELIVERIES
queue redrive dead                               | "moved":1
queue change jobs bury --state ready --all --dry-run | "changed":3
queue history jobs                               | WAITING_MS
queue cancel jobs 99999                     = 1 | "cancelled":0
topic readers log                                | BEHIND
topic delete-records log --tag x --dry-run       | "deleted":0
txn ls                                           | APP
txn show nobody                                  | EXPIRES
txn abort nobody 1 part-0                    = 1 | "aborted":0
server me                                        | "scopes"
server show                                      | "settings"
server history                                   | REQUESTS_PER_S
queue pause jobs                                 | is paused
queue claim jobs                             = 1 |
queue resume jobs                                | resumed
queue work jobs --exec cat --until-empty         | 3 done
router create log mirror                         | created the router log->mirror
router ls                                        | log->mirror
router graph                                     | └─ mirror
router rm 'log->mirror'                          | removed
group ls                                         | workers
group lag log workers                            | 2
group reset log workers --to latest              | "next_offset":3
bench --seconds 0.1                              | append 1
top --once --interval 0.2                        | per second
compact                                          | freed
backup all.tar                                   | files
restore all.tar restored                         | restored
verify restored                                  | all fine
repair restored                                  | nothing was damaged
hash                                             | scrypt
config show                                      | port = 4000
completion zsh                                   | compdef
page                                             | # Command line
schedule create tick log 9 --every 1h            | created the schedule tick
schedule ls                                      | every 3600000 ms
schedule run tick                                | 4
schedule rm tick                                 | removed tick
append jobs 9 --group '{"name": "g", "size": 1, "notify": "log"}' | "records":1
queue group jobs g                           = 1 | "complete":false
queue job log 1                              = 3 | not a queue
sqs credentials                                  | AWS_ACCESS_KEY_ID
webhook create hook log https://hook.invalid/    | created the webhook hook
webhook ls                                       | https://hook.invalid/
webhook show hook                                | "max_attempts":20
webhook test hook                            = 1 | not delivered
webhook rotate hook                              | rotated
webhook resume hook                              | resumed
webhook rm hook                                  | removed hook
topic rm copy --yes                              | removed copy
topic info copy                              = 3 | does not exist
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("data"), jwt_secret=SECRET, api_keys="boss") as server:
        server.key = "boss"
        yield server


def lines() -> Iterator[tuple[list[str], int, str]]:
    for line in SCRIPT.strip().splitlines():
        request, _, words = line.partition(" | ") if " | " in line else line.partition(" |")
        command, _, code = request.partition(" = ")
        yield shlex.split(command), int(code or 0), words.strip()


def in_directory(server: ServerProcess, directory: Path, arguments: list[str]) -> Done:
    """File names of the script are meant below the directory."""
    files = ("log.ndjson", "all.tar", "restored")
    placed = [str(directory / argument) if argument in files else argument for argument in arguments]
    env = {"TOPICS_API_KEY": "boss", "TOPICS_TOKEN": token(role="dba")}
    return run(server, *placed, stdin="secret\n" if arguments == ["hash"] else None, **env)


@pytest.mark.slow
@pytest.mark.timeout(720)
def test_each_command_does_its_work_as_a_process(server: ServerProcess, tmp_path: Path) -> None:
    for arguments, code, words in lines():
        if arguments == ["group", "ls"]:
            consumer = Consumer(server.client(token()), "log")
            assert consumer.offsets(limit=1) == [0]
            consumer.ack(0)
        done = in_directory(server, tmp_path, arguments)
        assert done.code == code, (arguments, done)
        assert words in done.out + done.err, (arguments, done)
        assert "Traceback" not in done.err


def test_the_script_leaves_no_command_out() -> None:
    root = root_command()
    context = root.make_context("topics", [], resilient_parsing=True)
    known: set[str] = set()
    for name in TABLE:
        subcommands = getattr(root.get_command(context, name), "commands", {})
        known |= {f"{name} {sub}" for sub in subcommands if sub != "page"} or {name}
    ran = {" ".join(arguments[:2]) for arguments, _, _ in lines()} | {arguments[0] for arguments, _, _ in lines()}
    # `serve` is what every test here runs against; what `doctor` finds, and so its exit code, depends on the machine;
    # `worker` needs an app of its own (tests/workers), `promote` a standby (test_operations.py).
    assert known - ran == {"doctor", "promote", "serve", "worker"}
