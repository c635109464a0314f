"""Commands of whoever operates a server: doctor, top, compact, promote, status."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.bucket.standbys import until
from tests.certificates import Authority
from tests.client.scripted import ScriptedServer, answer, error
from tests.launching import run
from tests.serving import free_port, serving
from topics.cli.commands.operations import checks
from topics.model.settings import Settings


def by_subject(settings: Settings) -> dict[str, checks.Finding]:
    return {finding.subject: finding for finding in checks.findings(settings)}


# --- doctor ---


def test_doctor_looks_at_everything_and_leaves_nothing(tmp_path: Path) -> None:
    environ = {"TOPICS_DATA_DIR": str(tmp_path / "data"), "PATH": os.environ["PATH"]}
    done = run(["doctor", "-o", "json"], environ)
    found = {finding["subject"] for finding in json.loads(done.stdout)}
    assert {"variant", "open files", "memory", "clock", "file system", "disk space", "disk speed", "keys"} <= found
    assert list(tmp_path.iterdir()) == []


def test_every_warning_of_doctor_says_what_to_do(tmp_path: Path) -> None:
    settings = Settings(
        data_dir=str(tmp_path),
        host="0.0.0.0",
        allow_insecure_no_auth=True,
        max_connections=1_000_000,
        hot_retain_bytes=1 << 50,
        max_body_bytes=1 << 30,
        checkpoint_bytes=2 << 30,
    )
    found = list(checks.findings(settings))
    assert {"keys", "TLS", "open files", "memory"} <= {
        each.subject for each in found if each.severity in ("warning", "error")
    }
    assert all(each.todo for each in found if each.severity in ("warning", "error"))


@pytest.mark.parametrize(("variant", "severity"), [("compiled", "ok"), ("pure", "note")])
def test_doctor_says_if_nothing_is_compiled(variant: str, severity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "VARIANT", variant)
    found = checks.variant()
    assert (found.severity, "TOPICS_PURE=0" in found.todo) == (severity, severity == "note")


def test_doctor_ends_with_1_if_something_is_wrong_and_prints_it(tmp_path: Path) -> None:
    environ = {"TOPICS_DATA_DIR": str(tmp_path), "TOPICS_HOST": "0.0.0.0", "PATH": os.environ["PATH"]}
    done = run(["doctor"], environ)
    assert done.returncode == 1
    assert b"error    keys: it will not start on 0.0.0.0 without keys" in done.stdout


def test_doctor_judges_the_certificate_as_the_start_does(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    for days, severity in ((90, "ok"), (5, "warning"), (-1, "error")):
        pair = authority.pair(days=days)
        os.chmod(pair.key, 0o600)
        settings = Settings(data_dir=str(tmp_path), tls_cert=pair.certificate, tls_key=pair.key)
        assert by_subject(settings)["TLS"].severity == severity


@pytest.mark.parametrize(
    ("given", "missing"), [("tls_cert", "TLS_KEY"), ("tls_key", "TLS_CERT"), ("tls_client_ca", "TLS_CERT")]
)
def test_doctor_sees_half_a_pair(given: str, missing: str, tmp_path: Path) -> None:
    one: dict[str, Any] = {given: Authority(tmp_path).pair(days=90).certificate}
    found = by_subject(Settings(data_dir=str(tmp_path), **one))["TLS"]
    assert found.severity == "error"
    assert found.text == f"it will not start: TOPICS_{given.upper()} is set, but TOPICS_{missing} is not"


def test_doctor_knows_file_systems_that_do_not_suit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for kind, severity in (("ext4", "ok"), ("nfs4", "error"), ("tmpfs", "warning"), ("overlay", "warning")):
        monkeypatch.setattr(checks, "file_system_of", lambda _, kind=kind: kind)
        assert checks.file_system(str(tmp_path)).severity == severity


def test_the_file_system_of_a_path_is_that_of_its_innermost_mount() -> None:
    assert checks.file_system_of("/proc/self") == "proc"


def test_doctor_reports_a_directory_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refused(_: str) -> object:
        raise PermissionError(13, "no")

    monkeypatch.setattr(checks, "disk_speed", refused)
    found = by_subject(Settings(data_dir=str(tmp_path)))
    assert (found["data directory"].severity, "permission denied" in found["data directory"].text) == ("error", True)


# --- top ---


def test_top_shows_rates_topics_queues_and_what_needs_attention(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        server.client().put("/v0/topics/mails", {"type": "queue"})
        server.client().append("mails", *range(7))
        environ = {"TOPICS_PORT": str(server.port), "PATH": os.environ["PATH"]}
        done = run(["top", "--once", "--interval", "0.2"], environ)
    assert done.returncode == 0, done
    shown = done.stdout.decode()
    assert f"http://127.0.0.1:{server.port}  ready  up " in shown
    assert "per second: requests " in shown
    assert "jobs: 7 ready, 0 leased, 0 delayed, 0 dead" in shown
    assert ["mails", "7", "0"] in [line.split() for line in shown.splitlines()]


def test_top_shows_slow_calls(tmp_path: Path) -> None:
    with serving(tmp_path, slow_request_ms=1) as server:
        server.client().append("t", *({"n": n} for n in range(5_000)))
        done = run(["top", "--once", "-i", "0.2"], {"TOPICS_PORT": str(server.port), "PATH": os.environ["PATH"]})
    assert done.returncode == 0, done.stderr
    assert b"slow: POST /v0/topics/t 20" in done.stdout


# --- compact ---


def test_compact_frees_what_retention_has_left(tmp_path: Path) -> None:
    with serving(tmp_path, checkpoint_bytes="4MiB", checkpoint_ms="1h", hot_retain_bytes=0) as server:
        client = server.client()
        for _ in range(20):
            client.append("t", *["x" * 1000] * 1000)
        client.append("kept", *range(100))
        assert client.delete("/v0/topics/t").status == 200
        before = bytes_of_packs(tmp_path)
        assert before > 10_000_000
        done = run(["compact"], {"TOPICS_PORT": str(server.port), "PATH": os.environ["PATH"]})
        assert done.returncode == 0, done.stderr
        assert b" freed" in done.stdout
        assert bytes_of_packs(tmp_path) < before / 4
        assert client.payloads("kept", limit=1000) == list(range(100))
    with serving(tmp_path) as again:
        assert again.client().payloads("kept", limit=1000) == list(range(100))


def bytes_of_packs(directory: Path) -> int:
    found = [path for path in directory.rglob("*") if "pack" in path.name or path.parent.name == "packs"]
    return sum(path.stat().st_size for path in found if path.is_file())


def test_compact_needs_a_key_for_everything(tmp_path: Path) -> None:
    with serving(tmp_path, api_keys="all,part:admin:a.,reader:read") as server:
        assert server.client("all").post("/v0/compact").json["bytes_after"] > 0
        assert server.client("part").post("/v0/compact").status == 403
        assert server.client("reader").post("/v0/compact").status == 403


# --- a primary and its standbys ---


def role(name: str) -> bytes:
    return answer(200, {"status": "ok", "version": "0", "uptime_ms": 1, "role": name})


def command(*arguments: str, url: str) -> Any:
    return run(list(arguments), {"TOPICS_URL": url, "PATH": os.environ["PATH"]})


def test_promote_goes_to_the_standby_and_says_the_term() -> None:
    promoted = answer(200, {"role": "primary", "term": 4})
    with ScriptedServer(role("primary")) as primary, ScriptedServer(role("standby"), promoted) as standby:
        done = command("promote", "--force", url=f"{primary.url},{standby.url}")
        assert (done.returncode, done.stdout.decode()) == (0, "primary in term 4\n")
        assert standby.seen[1].json == {"force": True}


def test_promote_asks_which_one_if_there_is_no_standby_or_several() -> None:
    with ScriptedServer(role("primary")) as one, ScriptedServer(role("primary")) as other:
        done = command("promote", url=f"{one.url},{other.url}")
    assert done.returncode == 2
    assert "give the URL of the one standby" in done.stderr.decode()


def test_a_command_goes_to_the_server_that_is_there_and_status_shows_which(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        gone, here = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{server.port}"
        assert command("append", "t", "1", url=f"{gone},{here}").returncode == 0
        assert server.client().payloads("t") == [1]
        done = command("server", "status", url=f"{gone},{here}")
        lines = [line.split() for line in done.stdout.decode().splitlines()]
        assert lines[:3] == [["SERVER", "ROLE"], [gone, "no", "reply"], [here, "primary"]]
        assert done.returncode == 1, "a server does not reply"
        assert command("server", "status", url=here).stdout.decode().startswith("TOPICS")
    done = command("server", "status", url=f"{gone},{here}")
    assert done.stdout.decode().count("no reply") == 2
    assert done.returncode == 5, "roles are all there is to show"


def test_a_write_to_a_standby_says_where_to_go() -> None:
    refusal = error(503, "not_primary", {"primary": "http://other:4000", "role": "standby"}, Retry_After=0)
    with ScriptedServer(refusal) as standby:
        done = command("append", "t", "1", url=standby.url)
    assert done.returncode == 5
    assert "name the primary with --url" in done.stderr.decode()


def test_status_shows_a_bucket_that_is_away(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    with serving(tmp_path / "a", bucket=f"file://{bucket}") as server:

        def status() -> str:
            done = command("server", "status", url=f"http://127.0.0.1:{server.port}")
            text = done.stdout.decode()
            assert done.returncode == ("warning: " in text)
            return text

        assert "bucket" not in status()
        bucket.rename(tmp_path / "gone")
        server.client().append("t", "waits")
        text = until(lambda: "warning: " in (found := status()) and found)
        assert "warning: The bucket has not answered for " in text
        assert "the log waits on disk" in text
        (tmp_path / "gone").rename(bucket)
        until(lambda: "warning: " not in status())
