"""Dashboard and alerts: made from the table of metrics, and true of a real server that a real Prometheus scrapes."""

import contextlib
import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.deploy.parts import DEPLOY, needs, program
from tests.live.rig import eventually
from tests.patience import PATIENCE_S
from tests.serving import Client, ServerProcess, free_port, serving
from tools import deploy_files
from tools.deploy_files import ALERTS, ROWS, Alert
from topics.api.metrics import FAMILIES

KEY, METRICS_KEY = "secret-of-the-owner", "secret-of-prometheus"


# --- made from the table ---


def test_the_files_are_those_that_the_table_gives() -> None:
    made = (deploy_files.rules(), deploy_files.dashboard(), deploy_files.page())
    files = (deploy_files.RULES, deploy_files.DASHBOARD, deploy_files.PRODUCTION)
    assert tuple(file.read_text() for file in files) == made, "run: .venv/bin/python tools/deploy_files.py"


def test_no_expression_names_a_metric_that_does_not_exist() -> None:
    assert len(deploy_files.expressions()) > 50
    assert {
        name for expression in deploy_files.expressions() for name in deploy_files.unknown_names(expression)
    } == set()


@pytest.mark.parametrize(
    "expression", ["topics_redy == 0", "rate(topics_wal_frames[5m])", "topics_wal_fsync_latency_us"]
)
def test_a_name_that_no_sample_has_is_found(expression: str) -> None:
    assert deploy_files.unknown_names(expression)


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    panels = json.loads(deploy_files.dashboard())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    cells = [
        (x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) == 23


# --- alerts ---


class Example(NamedTuple):
    """Series, a value a minute, that fire an alert at that minute, and series that do not."""

    firing: dict[str, str]
    quiet: dict[str, str]
    minutes: int = 60


def by_turns(*values: int) -> str:
    return " ".join(map(str, values * 30))


SYNCS = "topics_wal_fsync_latency_seconds_bucket"
EXAMPLES = {
    "TopicsDown": Example({'up{job="topics"}': "0x60"}, {'up{job="topics"}': "1x60"}),
    "TopicsNotReady": Example({"topics_ready": "0x60"}, {"topics_ready": by_turns(0, 1)}, 30),
    "TopicsReadOnly": Example({"topics_wal_read_only": "1x60"}, {"topics_wal_read_only": "0x60"}),
    "TopicsRestarting": Example({"topics_uptime_seconds": by_turns(60, 0)}, {"topics_uptime_seconds": "0+60x60"}, 35),
    "TopicsDiskFilling": Example(
        {"topics_disk_free_bytes": "9x60", "topics_disk_bytes": "100x60"},
        {"topics_disk_free_bytes": "11x60", "topics_disk_bytes": "100x60"},
    ),
    "TopicsDiskFullSoon": Example(
        {"topics_disk_free_bytes": "39000-40x600", "topics_disk_bytes": "100000x600"},
        {"topics_disk_free_bytes": "39000-1x600", "topics_disk_bytes": "100000x600"},
        500,
    ),
    "TopicsWritesRefused": Example(
        {"topics_wal_submit_full_total": "0+1x60"}, {"topics_wal_submit_full_total": "7x60"}
    ),
    "TopicsSyncsSlow": Example(
        {f'{SYNCS}{{le="0.25"}}': "0+90x60", f'{SYNCS}{{le="0.5"}}': "0+100x60", f'{SYNCS}{{le="+Inf"}}': "0+100x60"},
        {f'{SYNCS}{{le="0.25"}}': "0+100x60", f'{SYNCS}{{le="0.5"}}': "0+100x60", f'{SYNCS}{{le="+Inf"}}': "0+100x60"},
    ),
    "TopicsLoopHeld": Example({"topics_loop_slow_turns_total": "0+1x60"}, {"topics_loop_slow_turns_total": "0+0.1x60"}),
    "TopicsBusy": Example({"topics_cpu_seconds_total": "0+58x60"}, {"topics_cpu_seconds_total": "0+50x60"}),
    "TopicsConnectionsNearlyUsedUp": Example(
        {"topics_connections": "81x60", "topics_connections_max": "100x60"},
        {"topics_connections": "79x60", "topics_connections_max": "100x60"},
    ),
    "TopicsConnectionsRefused": Example(
        {"topics_connections_refused_total": "0+1x60"}, {"topics_connections_refused_total": "5x60"}
    ),
    "TopicsCertificateExpires": Example(
        {"topics_tls_certificate_expiry_seconds": "1000000x120"},
        {"topics_tls_certificate_expiry_seconds": "2000000x120"},
        100,
    ),
    "TopicsQueueWithoutWorkers": Example(
        {'topics_topic_queue_ready{topic="mails"}': "3x60", 'topics_topic_queue_in_flight{topic="mails"}': "0x60"},
        {'topics_topic_queue_ready{topic="mails"}': "3x60", 'topics_topic_queue_in_flight{topic="mails"}': "1x60"},
    ),
    "TopicsQueueGrowing": Example(
        {'topics_topic_queue_ready{topic="mails"}': "2000+5x120"},
        {'topics_topic_queue_ready{topic="mails"}': "5000-5x120"},
        100,
    ),
    "TopicsDeadLetters": Example(
        {"topics_queue_dead_lettered_total": "0+1x60"}, {"topics_queue_dead_lettered_total": "9x60"}
    ),
    "TopicsPipelineDown": Example(
        {'topics_pipeline_up{pipeline="mails"}': "0x60"}, {'topics_pipeline_up{pipeline="mails"}': "1x60"}
    ),
    "TopicsPipelineFallingBehind": Example(
        {'topics_pipeline_lag{pipeline="mails"}': "20000+100x60"},
        {'topics_pipeline_lag{pipeline="mails"}': "90000-100x60"},
    ),
    "TopicsPipelineStuck": Example(
        {'topics_pipeline_oldest_unread_age_seconds{pipeline="mails"}': "2000x60"},
        {'topics_pipeline_oldest_unread_age_seconds{pipeline="mails"}': "20x60"},
    ),
    "TopicsPipelineDropsLateRows": Example(
        {'topics_pipeline_late_rows_total{pipeline="mails"}': "0+1x60"},
        {'topics_pipeline_late_rows_total{pipeline="mails"}': "563x60"},
    ),
    "TopicsPipelineExpectationNotMet": Example(
        {'topics_pipeline_unmet_rows_total{pipeline="mails",expectation="known"}': "0+1x60"},
        {'topics_pipeline_unmet_rows_total{pipeline="mails",expectation="known"}': "7x60"},
    ),
}


def fired(alert: Alert, series: str) -> dict[str, Any]:
    """The alert as it fires for that series."""
    labels = {name: value for name, value in re.findall(r'(\w+)="([^"]*)"', series) if name != "le"}
    texts = {"summary": alert.summary, "description": alert.remedy, "runbook": deploy_files.PAGE}
    filled = {
        name: re.sub(r"{{ \$labels\.(\w+) }}", lambda found: labels[found[1]], text) for name, text in texts.items()
    }
    return {"exp_labels": {**labels, "severity": alert.severity}, "exp_annotations": filled}


def rule_test(alert: Alert, series: dict[str, str], expected: list[dict[str, Any]], minutes: int) -> Any:
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [{"eval_time": f"{minutes}m", "alertname": alert.name, "exp_alerts": expected}],
    }


def test_every_alert_has_an_example() -> None:
    assert EXAMPLES.keys() == {alert.name for alert in ALERTS}


class TestAlerts:
    pytestmark = needs("promtool")

    def promtool(self, folder: Path, tests: list[Any]) -> subprocess.CompletedProcess[str]:
        file = folder / "alerts.yml"
        file.write_text(yaml.safe_dump({"rule_files": [str(deploy_files.RULES)], "tests": tests}))
        return subprocess.run([program("promtool"), "test", "rules", file], capture_output=True, text=True)

    def test_each_fires_when_it_should_and_only_then(self, tmp_path: Path) -> None:
        tests: list[Any] = []
        for alert in ALERTS:
            firing, quiet, minutes = EXAMPLES[alert.name]
            tests.append(rule_test(alert, firing, [fired(alert, next(iter(firing)))], minutes))
            tests.append(rule_test(alert, quiet, [], minutes))
        done = self.promtool(tmp_path, tests)
        assert done.returncode == 0, done.stdout + done.stderr

    def test_a_wrong_expectation_is_noticed(self, tmp_path: Path) -> None:
        alert = ALERTS[0]
        assert self.promtool(tmp_path, [rule_test(alert, EXAMPLES[alert.name].firing, [], 60)]).returncode == 1

    def test_prometheus_accepts_the_configuration(self, tmp_path: Path) -> None:
        for name in ("prometheus.yml", "rules.yml"):
            (tmp_path / name).write_text((DEPLOY / "prometheus" / name).read_text())
        (tmp_path / "metrics-key").write_text(METRICS_KEY)
        check = [program("promtool"), "check", "config", tmp_path / "prometheus.yml"]
        done = subprocess.run(check, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


# --- a real Prometheus, a real server ---


class Prometheus:
    def __init__(self, port: int) -> None:
        self.port = port

    def get(self, path: str, **query: str) -> Any:
        address = f"http://127.0.0.1:{self.port}{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(address, timeout=PATIENCE_S) as reply:
            return json.loads(reply.read())["data"]

    def value(self, expression: str) -> Any:
        return self.get("/api/v1/query", query=expression)["result"]

    def answers(self) -> bool:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            return bool(self.value('up{job="topics"} == 1'))
        return False


@contextlib.contextmanager
def scraping(server: ServerProcess, folder: Path) -> Iterator[Prometheus]:
    """Our configuration with another target, and scrapes often enough for a test."""
    folder.mkdir()
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{server.port}"]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    (folder / "rules.yml").write_text(deploy_files.RULES.read_text())
    (folder / "metrics-key").write_text(METRICS_KEY)
    port = free_port()
    command = [
        program("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        found = Prometheus(port)
        eventually(found.answers)
        yield found
    finally:
        process.terminate()
        process.wait()


def use(client: Client) -> None:
    """A bit of everything that a panel shows."""
    client.put("/v0/topics/log", {"durability": "fsync"})
    client.put("/v0/topics/jobs", {"type": "queue"})
    client.append("log", *range(10))
    client.append("jobs", 1, 2)
    client.post("/v0/topics/jobs/claim", {"node": "a", "max": 1})
    client.diff("log", from_seq=0)
    pipeline = {"sources": {"log": {"topic": "log"}}, "sql": "SELECT data FROM log", "sink": {"topic": "copy"}}
    assert client.put("/v0/pipelines/copy", pipeline).status == 201
    status = {"state": "running", "runner": "a", "batch": 1, "rows_per_second": 2.0, "positions": {"log": {"seq": 7}}}
    assert client.post("/v0/pipelines/copy/status", status).status == 200


def shows(prometheus: Prometheus, client: Client, expression: str) -> bool:
    """Whether there is something to draw; a quantile of a time without syncs is not a number."""
    client.append("log", 1)
    return any(sample["value"][1] != "NaN" for sample in prometheus.value(expression))


class TestScraped:
    pytestmark = needs("prometheus")

    def test_every_panel_shows_something_and_no_alert_fires_on_a_healthy_server(self, tmp_path: Path) -> None:
        with serving(tmp_path / "data", api_keys=f"{KEY},{METRICS_KEY}:read") as server:
            client = server.client(KEY)
            use(client)
            text = client.get("/v0/metrics").body.decode()
            assert {family.name for family in text_string_to_metric_families(text)} == FAMILIES.keys()
            with scraping(server, tmp_path / "prometheus") as prometheus:
                lines = [line for row in ROWS.values() for panel in row for line in panel.lines.values()]
                for line in lines:
                    expression = line.replace("$instance", ".*").replace("$__rate_interval", "1m")
                    eventually(lambda expression=expression: shows(prometheus, client, expression))
                self.check_rules(prometheus)
                assert server.terminate() == 0
                eventually(lambda: bool(prometheus.value('up{job="topics"} == 0')))

    def check_rules(self, prometheus: Prometheus) -> None:
        (group,) = prometheus.get("/api/v1/rules", type="alert")["groups"]
        assert {rule["name"] for rule in group["rules"]} == {alert.name for alert in ALERTS}
        assert [rule for rule in group["rules"] if rule["health"] == "err"] == []
        # The disk of the machine that runs the tests may be as full as it is, and its cores as busy.
        of_the_machine = {"TopicsDiskFilling", "TopicsLoopHeld"}
        assert {rule["name"] for rule in group["rules"] if rule["state"] == "firing"} <= of_the_machine
