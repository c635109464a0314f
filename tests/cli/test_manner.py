"""How every command behaves: quick help, one line for an error, exit codes, clean ends, shells and plug-ins."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.terminal import Invoke, environ, run, start
from tests.launching import Launched
from tests.patience import PATIENCE_S
from tests.serving import TOPICS, Client, ServerProcess, serving
from topics import cli
from topics.cli.command_table import TABLE, root_command
from topics.cli.commands.page import markdown
from topics.cli.failure import MEANINGS
from topics.cli.plugins import plugin_names
from topics.cli.spans import moment_ms, shown_bytes, shown_time, size_bytes, span_ms
from topics.model.extras import install_command

ROOT = Path(__file__).parent.parent.parent
DEADLINE_S = PATIENCE_S
# What typer itself needs for a page of help is about 150; each of these alone is more than 50 ms.
HELP_MODULES_MAX = 260
HEAVY = {
    "rich",
    "httpx2",
    "pydantic",
    "msgspec",
    "asyncio",
    "importlib.metadata",
    "topics.client",
    "topics.model.settings",
}


def modules_after(*arguments: str) -> set[str]:
    script = f"import sys; sys.argv = ['topics', *{arguments!r}]\nfrom topics.cli import main\n"
    script += "try: main()\nexcept SystemExit: print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], env=environ(None), capture_output=True, text=True)
    return set(done.stderr.split())


# --- help ---


def test_help_lists_every_command_and_loads_none() -> None:
    loaded = modules_after("--help")
    assert not HEAVY & loaded
    assert {name for name in loaded if name.startswith("topics.cli.")} == {
        "topics.cli.command_table",
        "topics.cli.failure",
    } | {"topics.cli.plugins"}
    assert len(loaded) < HELP_MODULES_MAX


def test_help_of_a_command_loads_no_client() -> None:
    assert not {"httpx2", "rich", "topics.client.sync.client"} & modules_after("queue", "work", "--help")


def test_every_command_of_the_table_is_there_and_explains_itself(invoke: Invoke) -> None:
    listed = run(None, "--help").out
    root = root_command()
    context = root.make_context("topics", [], resilient_parsing=True)
    for name, row in TABLE.items():
        command = root.get_command(context, name)
        assert command.help, name
        assert row.hidden or f"  {name} " in listed
        for sub_name, sub in getattr(command, "commands", {}).items():
            assert sub.help, f"{name} {sub_name}"


def test_the_page_is_current() -> None:
    page = (ROOT / "docs" / "CLI.md").read_text()
    assert page == markdown(), "run: topics page > docs/CLI.md"


def test_the_usage_lines_of_the_page_can_be_followed() -> None:
    usages = [line for line in markdown().splitlines() if line.startswith("topics ")]
    assert not any("{" in line or "[[" in line or "......" in line for line in usages)
    assert "topics queue ack [OPTIONS] QUEUE SEQ..." in usages
    assert "topics append [OPTIONS] TOPIC [DATA]..." in usages


@pytest.mark.parametrize(
    ("command", "usage"),
    [("append", "append [OPTIONS] TOPIC [DATA]..."), ("queue ack", "queue ack [OPTIONS] QUEUE SEQ...")],
)
def test_the_help_has_the_usage_lines_of_the_page(invoke: Invoke, command: str, usage: str) -> None:
    assert invoke(*command.split(), "--help").out.splitlines()[0] == f"Usage: topics {usage}"


def test_the_page_names_every_exit_code() -> None:
    page = markdown()
    assert all(f"| {code} | " in page for code in MEANINGS)


# --- errors ---


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["toppic"], "no such command: toppic, did you mean topic?; see topics --help"),
        (["topic", "lss"], "no such command: lss, did you mean ls?; see topics topic --help"),
        (["topic", "show", "t"], "no such command: show, did you mean info?; see topics topic --help"),
        (["topic", "xyzzy"], "no such command: xyzzy; see topics topic --help"),
        (["spark", "submitt"], "no such command: submitt, did you mean submit?; see topics spark --help"),
        (["tail"], "missing argument 'TOPIC'; see topics tail --help"),
        (["tail", "t", "--form", "1"], "no such option: --form"),
        (["tail", "t", "-o", "xml"], "invalid value for '--output' / '-o': 'xml' is not one of 'json'"),
        (["tail", "t", "-n", "-1"], "invalid value for '--last' / '-n': must be at least 0, not '-1'; see"),
        (["queue", "peek", "q", "-n", "9999"], "invalid value for '--count' / '-n': must be at most 1000, not '9999'"),
        (["queue", "ack", "q", "x"], "invalid value for 'SEQ': must be a whole number, not 'x'; see"),
    ],
)
def test_wrong_use_is_one_line_that_names_the_page_of_help(
    invoke: Invoke, arguments: list[str], complaint: str
) -> None:
    done = invoke(*arguments)
    assert done.code == 2
    assert done.complaint.startswith(complaint)
    assert "--help" in done.complaint


def test_a_group_without_a_command_shows_its_help(invoke: Invoke) -> None:
    done = invoke("queue")
    assert (done.code, done.out) == (2, "")
    assert "redrive" in done.err


def test_no_server_is_told_with_the_way_to_one(invoke: Invoke) -> None:
    for command in (["topic", "ls"], ["append", "t", "1"], ["queue", "work", "q", "--exec", "true"], ["bench"]):
        done = invoke(*command, "--url", "http://127.0.0.1:9")
        assert done.code == 5
        assert done.complaint.startswith("cannot reach http://127.0.0.1:9")
        assert "`topics serve`" in done.complaint
        assert "--url, TOPICS_URL or TOPICS_PORT" in done.complaint
        assert done.complaint.count("`topics serve`") == 1


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with two keys, of which one may only read."""
    with serving(tmp_path_factory.mktemp("guarded"), api_keys="boss,guest:read") as server:
        yield server


def test_keys_come_by_flag_or_variable_and_their_lack_is_reported(
    guarded: ServerProcess, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = ["--url", f"http://127.0.0.1:{guarded.port}"]
    done = invoke("topic", "ls", *url)
    assert done.code == 4
    assert "TOPICS_API_KEY" in done.complaint
    assert invoke("topic", "ls", *url, "--key", "boss").code == 0
    monkeypatch.setenv("TOPICS_API_KEY", "guest")
    assert invoke("topic", "ls", *url).code == 0
    refused = invoke("append", "t", "1", *url)
    assert refused.code == 4
    assert "the key may not do this" in refused.complaint


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.cli.commands.password.hash_a_password", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.run(["hash"])


# --- ends ---


def test_help_into_a_closed_pipe_is_quiet() -> None:
    process = start(None, "--help")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=DEADLINE_S) in (0, 141)


def test_ctrl_c_while_waiting_for_an_answer_is_exit_code_130(server: ServerProcess, client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"type": "queue"})
    process = start(server, "queue", "claim", topic, "--wait", "30s")
    while not _has_a_socket(process.pid):
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out, err) == (130, b"", b"")


def _has_a_socket(pid: int) -> bool:
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(f"/proc/{pid}/fd/{number}").startswith("socket:"):
                return True
    return False


# --- shells and plug-ins ---


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_each_shell(invoke: Invoke, shell: str) -> None:
    done = invoke("completion", shell)
    assert done.code == 0
    assert "_TOPICS_COMPLETE=complete_" + shell in done.out


Complete = Callable[..., list[str]]


@pytest.fixture
def completed(invoke: Invoke) -> Complete:
    """What a shell would offer after these words."""

    def completed(*words: str, **env: str) -> list[str]:
        env |= {"_TOPICS_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
        done = invoke(**env)
        assert (done.code, done.err) == (0, "")
        return done.out.split()

    return completed


def test_the_shell_is_told_commands_and_options(completed: Complete) -> None:
    assert completed("topics", "co") == ["config", "compact", "completion"]
    assert completed("topics", "queue", "re") == ["redrive", "resume"]
    assert "--until-end" in completed("topics", "tail", "--u")


def test_the_shell_is_told_names_of_topics_and_of_queues_where_only_these_fit(
    completed: Complete, server: ServerProcess, client: Client, topic: str
) -> None:
    client.append(f"{topic}-log", 1)
    client.put(f"/v0/topics/{topic}-queue", {"type": "queue"})
    both, queue = [f"{topic}-log", f"{topic}-queue"], [f"{topic}-queue"]
    for command in ("tail", "append", "export", "topic info", "queue peek", "router create x", "tail x"):
        assert completed("topics", *command.split(), f"{topic}-") == both, command
    for command in ("queue claim", "queue work"):
        assert completed("topics", *command.split(), f"{topic}-") == queue, command
    url = f"http://127.0.0.1:{server.port}"
    assert completed("topics", "tail", "--url", url, f"{topic}-l", TOPICS_URL="http://127.0.0.1:1") == [f"{topic}-log"]
    assert completed("topics", "router", "rm", "--source", f"{topic}-q") == queue


@pytest.mark.slow
def test_bash_completes_names_with_colons(invoke: Invoke, server: ServerProcess, client: Client, topic: str) -> None:
    for name in ("a:orders", "a:items", "b"):
        client.append(f"{topic}:{name}", 1)
    script = invoke("completion", "bash").out
    for typed, offered in (
        (f"topics tail {topic}:a:", ["items", "orders"]),
        (f"topics tail -f {topic}:b {topic}:a:i", ["items"]),
        (f"topics tail {topic[:-1]}", None),
        ("topics queue re", ["redrive", "resume"]),
    ):
        asked = f"COMP_LINE={typed!r} COMP_POINT={len(typed)}; _topics_completion {TOPICS}; "
        shell = f"{script}\n{asked}printf '%s\\n' \"${{COMPREPLY[@]}}\""
        done = subprocess.run(
            ["bash", "-c", shell], env=environ(server), capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.stderr == ""
        if offered is not None:
            assert done.stdout.split() == offered, typed
        else:
            assert f"{topic}:a:orders" in done.stdout.split()


def test_the_shell_is_told_nothing_when_there_is_no_server(completed: Complete) -> None:
    assert completed("topics", "tail", "a", TOPICS_URL="http://127.0.0.1:1") == []
    assert completed("topics", "tail", "a", TOPICS_URL="", TOPICS_PORT="no port") == []


def test_the_server_of_this_machine_is_found_by_its_port(
    invoke: Invoke, server: ServerProcess, client: Client, topic: str
) -> None:
    client.append(topic, 1)
    assert invoke("tail", topic, "-o", "raw", TOPICS_URL="", TOPICS_PORT=str(server.port)).out == "1\n"
    # An address is more than a port.
    assert invoke("tail", topic, "-o", "raw", TOPICS_PORT="1").out == "1\n"
    wrong = invoke("topic", "ls", TOPICS_URL="", TOPICS_PORT="0")
    assert (wrong.code, wrong.complaint) == (
        2,
        "TOPICS_PORT must be a port from 1 to 65535, not '0'; or give its URL (TOPICS_URL)",
    )
    linked = invoke("topic", "ls", TOPICS_URL="", TOPICS_PORT="tcp://10.0.0.1:4000")
    assert "set by Kubernetes for a Service named topics" in linked.complaint


@pytest.fixture
def plugged(tmp_path: Path) -> Path:
    """A package with two commands, one of which cannot be imported."""
    package = tmp_path / "extra_commands.py"
    package.write_text(
        "import typer\n\napp = typer.Typer(rich_markup_mode=None)\n\n"
        "@app.command()\ndef one() -> None:\n    print('one of another package')\n\n"
        "@app.command()\ndef two() -> None:\n    pass\n"
    )
    metadata = tmp_path / "extra_commands-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: extra-commands\nVersion: 1.0\n")
    entries = "[other]\nx = y:z\n\n[topics.commands]\nextra = extra_commands:app\nbroken = no_such_module:app\n"
    entries += "\n[more]\na = b:c\n"
    (metadata / "entry_points.txt").write_text(entries)
    return tmp_path


@pytest.mark.slow
def test_commands_of_other_packages_are_listed_and_loaded_when_named(plugged: Path) -> None:
    env = {"PYTHONPATH": str(plugged)}
    listed = run(None, "--help", **env).out
    assert "Commands of other packages" in listed
    assert "extra" in listed.split("other packages")[1]
    assert "From extra_commands." in listed
    assert "From topics_spark" not in listed, "our own commands say what they do"
    done = run(None, "extra", "one", **env)
    assert (done.code, done.out) == (0, "one of another package\n")
    broken = run(None, "broken", **env)
    assert (broken.code, "cannot be loaded: No module named" in broken.complaint) == (1, True)


def test_metadata_is_read_as_the_library_for_it_would(plugged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import entry_points

    monkeypatch.syspath_prepend(str(plugged))
    assert set(plugin_names()) == {entry.name for entry in entry_points(group="topics.commands")}
    assert {"extra", "broken"} <= set(plugin_names())


# --- spans ---


def test_spans_and_sizes_are_read_as_people_write_them() -> None:
    spans = {"500": 500, "500ms": 500, "1.5s": 1_500, "10m": 600_000, "2h": 7_200_000, "7 d": 604_800_000}
    assert {text: span_ms(text, "--x") for text in spans} == spans
    sizes = {"4096": 4096, "1KiB": 1024, "1.5 MiB": 1_572_864, "2gib": 2 << 30}
    assert {text: size_bytes(text, "--x") for text in sizes} == sizes
    assert moment_ms("1m", "--x", now_ms=100_000) == 40_000
    assert moment_ms("1794789132454", "--x") == 1_794_789_132_454
    assert moment_ms("2026-11-16T00:00:00Z", "--x") == moment_ms("2026-11-16T01:00:00+01:00", "--x")
    assert shown_time(moment_ms("2026-11-16T00:00:00.007Z", "--x")) == "2026-11-16T00:00:00.007Z"
    assert [shown_bytes(size) for size in (5, 2048, 3 << 20, 5 << 30)] == ["5 B", "2.0 KiB", "3.0 MiB", "5.0 GiB"]


# --- streams that are not there, or full ---


@pytest.mark.parametrize("arguments", [("--help",), ("topic", "ls"), ("tail",), ("export",)])
def test_a_full_disk_is_one_line(server: ServerProcess, client: Client, topic: str, arguments: tuple[str, ...]) -> None:
    client.append(topic, 1)
    named = (*arguments, topic) if arguments in (("tail",), ("export",)) else arguments
    with open("/dev/full", "wb") as full:
        process = Launched(named, environ(server), stdout=full.fileno(), stderr=subprocess.PIPE)
    said = b"topics: cannot write the output: No space left on device; free some space, and run the command again\n"
    assert process.communicate() == (b"", said)
    assert process.returncode == 1


@pytest.mark.slow
def test_closed_streams_are_empty_or_go_nowhere(server: ServerProcess, client: Client, topic: str) -> None:
    client.append(topic, 1)

    def shell(command: str) -> subprocess.CompletedProcess[str]:
        line = f"exec {TOPICS} {command}"
        return subprocess.run(["/bin/sh", "-c", line], env=environ(server), capture_output=True, text=True)

    silent = shell(f"tail {topic} >&-")
    assert (silent.returncode, silent.stderr) == (0, "")
    assert shell(f"append {topic} <&-").stderr == "topics: nothing to append\n"
    nobody = shell("tail nobody 2>&-")
    assert (nobody.returncode, nobody.stdout, nobody.stderr) == (3, "", "")


def test_a_missing_extra_is_told_in_one_line(tmp_path: Path) -> None:
    # Stands before the installed packages: an import of pyspark fails as it does where the extra is missing.
    (tmp_path / "pyspark.py").write_text("raise ModuleNotFoundError(\"No module named 'pyspark'\", name='pyspark')")
    done = run(None, "spark", "submit", "job.py", PYTHONPATH=str(tmp_path))
    pip = ".venv/bin/pip" if Path(sys.prefix).resolve() == ROOT / ".venv" else "pip"
    assert done.complaint == f"this needs the package pyspark: {pip} install -e '.[spark]' in {ROOT}"
    assert done.code == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "extra", "setting", "value"),
    [("opentelemetry", "tracing", "TOPICS_TRACING", "1"), ("obstore", "bucket", "TOPICS_BUCKET", "s3://a-bucket/x")],
)
def test_a_server_that_needs_a_missing_extra_says_how_to_install_it(
    package: str, extra: str, setting: str, value: str, tmp_path: Path
) -> None:
    (tmp_path / f"{package}.py").write_text(f"raise ModuleNotFoundError('No module named', name='{package}')")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = {setting: value, "TOPICS_DATA_DIR": str(tmp_path / "data"), "TOPICS_PORT": "0"}
    done = run(None, "serve", PYTHONPATH=path, **settings)
    assert (done.code, install_command(extra) in done.err) == (2, True), done.err


@pytest.mark.parametrize("origin", ["an index", "a wheel", "a wheel that is gone"])
def test_an_extra_comes_from_where_the_package_came_from(
    origin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "a folder" / "topicsd.whl"
    wheel.parent.mkdir()
    if origin == "a wheel":
        wheel.touch()
    metadata = tmp_path / "topicsd-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.4\nName: topicsd\nVersion: 0.1.0\n")
    if origin != "an index":
        (metadata / "direct_url.json").write_text(json.dumps({"url": wheel.as_uri(), "archive_info": {}}))
    monkeypatch.setattr("topics.model.extras.__file__", "/usr/lib/python3/site-packages/topics/model/extras.py")
    monkeypatch.syspath_prepend(tmp_path)
    source = f" @ {wheel.as_uri()}" if origin == "a wheel" else ""
    assert install_command("spark") == f"pip install 'topicsd[spark]{source}'"


def test_an_empty_password_is_not_hashed() -> None:
    done = run(None, "hash", stdin="")
    assert done.complaint == "there is no password; type one, or give it as a line of standard input"
    assert done.out == ""
