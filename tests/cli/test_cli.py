"""The `topics` command from outside: help is fast, failures are one line and exit code 2, secrets stay hidden."""

import errno
import os
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import topics
from tests.cli.terminal import run
from topics import cli
from topics.cli.settings_page import markdown
from topics.model.settings import Settings, load_settings
from topics.model.variant import VARIANT

ROOT = Path(__file__).parent.parent.parent


def serve_with(monkeypatch: pytest.MonkeyPatch, run: Callable[..., int], *arguments: str) -> int | str | None:
    """The exit code of `topics serve` in this process, with another server in place of the real one."""
    server = ModuleType("topics.server")
    server.__dict__["run"] = run
    monkeypatch.setitem(sys.modules, "topics.server", server)
    monkeypatch.setattr(sys, "argv", ["topics", "serve", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return caught.value.code


def test_the_settings_page_is_current() -> None:
    page = (ROOT / "docs" / "SETTINGS.md").read_text()
    assert page == markdown(), "run: topics config page > docs/SETTINGS.md"


def test_version_is_that_of_the_package() -> None:
    assert run(None, "--version").out == f"topics {topics.__version__} ({VARIANT})\n"


def test_help_loads_neither_server_nor_engine() -> None:
    script = "import sys; sys.argv = ['topics', '--help']\nfrom topics.cli import main\n"
    script += "try: main()\nexcept SystemExit: print(*sys.modules, file=sys.stderr)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stderr.split()
    assert "topics.cli.command_table" in loaded
    assert not {"asyncio", "uvloop", "rich", "topics.engine", "topics.server"} & set(loaded)


def test_config_show_prints_a_file_that_gives_the_same_settings(tmp_path: Path) -> None:
    shown = run(None, "config", "show", "--max-body-bytes", "8MiB", TOPICS_ALLOWED_HOSTS='a,b"c')
    path = tmp_path / "topics.toml"
    path.write_text(shown.out)
    settings, _ = load_settings({}, {}, str(path))
    assert settings == Settings(max_body_bytes=8 << 20, allowed_hosts=("a", 'b"c'))


def test_config_show_origin_names_the_source_of_each_value(tmp_path: Path) -> None:
    path = tmp_path / "topics.toml"
    path.write_text("max_topics = 7\n")
    done = run(None, "config", "show", "--origin", "--port", "5", TOPICS_HOST="::1", TOPICS_CONFIG=str(path))
    lines = {line.split()[0]: line.partition("# ")[2] for line in done.out.splitlines()}
    assert lines["port"] == "flag --port"
    assert lines["host"] == "environment TOPICS_HOST"
    assert lines["max_topics"] == f"file {path}"
    assert lines["max_routers"] == "default"
    assert tomllib.loads(done.out)["port"] == 5


def test_config_show_counts_keys_and_never_prints_them() -> None:
    done = run(None, "config", "show", "--origin", TOPICS_API_KEYS="s3cret,0ther:rw")
    assert "# api_keys: 2 set" in done.out
    assert "s3cret" not in done.out + done.err
    assert "0ther" not in done.out + done.err


@pytest.mark.parametrize("command", [["serve"], ["config", "show"]])
def test_a_wrong_setting_is_one_line_and_exit_code_2(command: list[str]) -> None:
    done = run(None, *command, TOPICS_PORT="70000")
    assert done.code == 2
    assert done.err.splitlines() == [
        "topics: TOPICS_PORT is '70000', but must be a whole number from 0 to 65535 (0: any free port)"
    ]


def test_a_variable_that_sets_nothing_is_warned_of_without_its_value(tmp_path: Path) -> None:
    (tmp_path / "topics.toml").touch()
    environ = {"TOPICS_CONFIG": str(tmp_path / "topics.toml"), "TOPICS_PORT": "5", "TOPICS_API_KEY": "s3cret"}
    done = run(None, "config", "show", **environ, TOPICS_QQQ="1")
    assert done.code == 0
    assert done.err.splitlines() == [
        "topics: TOPICS_API_KEY sets nothing, did you mean TOPICS_API_KEYS?",
        "topics: TOPICS_QQQ sets nothing",
    ]


def test_an_unknown_flag_is_exit_code_2() -> None:
    done = run(None, "serve", "--max-bodi-bytes", "5")
    assert done.code == 2
    assert "Traceback" not in done.err


def test_serve_passes_settings_and_returns_the_servers_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Settings, str]] = []

    def run(settings: Settings, *, log_format: str, origins: dict[str, str]) -> int:
        assert origins["port"] == "flag --port"
        seen.append((settings, log_format))
        return 7

    assert serve_with(monkeypatch, run, "--port", "5", "--log-format", "json", "--probe-auth") == 7
    assert seen == [(Settings(port=5, log_format="json", probe_auth=True), "json")]


def test_serve_takes_the_keys_out_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_API_KEYS", "s3cret")

    def run(settings: Settings, *, log_format: str, origins: dict[str, str]) -> int:
        assert settings.api_keys == ("s3cret",)
        return int("TOPICS_API_KEYS" in os.environ)

    assert serve_with(monkeypatch, run) == 0


def test_a_taken_port_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(settings: Settings, *, log_format: str, origins: dict[str, str]) -> int:
        with socket.socket() as listening:
            listening.bind((settings.host, settings.port))
        return 0

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert serve_with(monkeypatch, run, "--port", port) == 2
    way_out = "a server may already run there: --port or TOPICS_PORT chooses another"
    assert capsys.readouterr().err == f"topics: cannot listen on 127.0.0.1:{port}: address already in use; {way_out}\n"


def test_an_unusable_directory_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def run(settings: Settings, *, log_format: str, origins: dict[str, str]) -> int:
        os.makedirs(settings.data_dir)
        return 0

    (tmp_path / "file").touch()
    data_dir = tmp_path / "file" / "data"
    assert serve_with(monkeypatch, run, "--data-dir", str(data_dir)) == 2
    assert capsys.readouterr().err == f"topics: cannot use {data_dir}: not a directory\n"


def test_an_error_that_no_setting_causes_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(settings: Settings, *, log_format: str, origins: dict[str, str]) -> int:
        raise OSError(errno.EIO, "the disk is broken")

    with pytest.raises(OSError, match="the disk is broken"):
        serve_with(monkeypatch, run)
