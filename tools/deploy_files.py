"""The Grafana dashboard and the Prometheus alerts, checked against the table of metrics; run it after a change.

An expression that names a metric which the server does not have ends this program before it writes anything.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from topics.api.metrics import FAMILIES

ROOT: Final = Path(__file__).resolve().parent.parent
RULES: Final = ROOT / "deploy" / "prometheus" / "rules.yml"
DASHBOARD: Final = ROOT / "deploy" / "grafana" / "topics.json"
PRODUCTION: Final = ROOT / "docs" / "PRODUCTION.md"
PAGE: Final = "docs/PRODUCTION.md#alerts"
SAMPLE_ENDINGS: Final = {"gauge": ("",), "counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}


class Alert(NamedTuple):
    """`lasts`: how long the expression must hold. `remedy`: what to do, in one sentence."""

    name: str
    expression: str
    lasts: str
    severity: str
    summary: str
    remedy: str


class Panel(NamedTuple):
    """A chart with an expression for each name of a line; `{{…}}` in a name is a label."""

    title: str
    lines: dict[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8


ALERTS: Final = (
    Alert(
        "TopicsDown",
        'up{job="topics"} == 0',
        "1m",
        "critical",
        "Prometheus cannot scrape the server.",
        "A recovering server answers metrics: process or network are gone, or the key is wrong. Look at the log.",
    ),
    Alert(
        "TopicsNotReady",
        "topics_ready == 0",
        "5m",
        "critical",
        "The server has refused requests for 5 minutes.",
        "GET /v0/ready says why: recovery (topics_recovery_progress), draining, or read-only.",
    ),
    Alert(
        "TopicsReadOnly",
        "topics_wal_read_only == 1",
        "0m",
        "critical",
        "A sync of the log failed, or another process uses the data directory; writes are refused.",
        "Check the disk (dmesg), then restart; the log line before it names the reason.",
    ),
    Alert(
        "TopicsRestarting",
        "resets(topics_uptime_seconds[30m]) > 2",
        "0m",
        "warning",
        "The server has started more than twice in half an hour.",
        "Look for the exit code and the last line of the log of each run, and for the kernel's memory killer.",
    ),
    Alert(
        "TopicsDiskFilling",
        "topics_disk_free_bytes / topics_disk_bytes < 0.1",
        "5m",
        "critical",
        "Less than a tenth of the disk is free; a full disk refuses writes.",
        "Lower caps and TTLs, drop topics, or enlarge the disk; deleting works on a full disk.",
    ),
    Alert(
        "TopicsDiskFullSoon",
        "predict_linear(topics_disk_free_bytes[6h], 86400) < 0 and topics_disk_free_bytes / topics_disk_bytes < 0.4",
        "1h",
        "warning",
        "At the pace of the last six hours the disk is full within a day.",
        "Find the topic that grows (topics_topic_bytes_live) and give it a cap or a TTL.",
    ),
    Alert(
        "TopicsWritesRefused",
        "rate(topics_wal_submit_full_total[5m]) > 0",
        "5m",
        "warning",
        "Writes are refused with 429 because the disk does not keep up.",
        "Compare the sync times with the disk's; batch appends, or use the class disk where fsync is not needed.",
    ),
    Alert(
        "TopicsSyncsSlow",
        "histogram_quantile(0.99, rate(topics_wal_fsync_latency_seconds_bucket[10m])) > 0.25",
        "10m",
        "warning",
        "One sync of the log in a hundred takes more than 250 ms.",
        "Every fsync write waits for one: give the log a disk of its own, or look for what else writes to this one.",
    ),
    Alert(
        "TopicsLoopHeld",
        "increase(topics_loop_slow_turns_total[10m]) > 5",
        "0m",
        "warning",
        "The event loop was held for more than 100 ms, more than five times in ten minutes.",
        "The log names the request of each such turn; a machine without free processor time looks the same.",
    ),
    Alert(
        "TopicsBusy",
        "rate(topics_cpu_seconds_total[5m]) > 0.9",
        "15m",
        "warning",
        "The server uses nearly all of the one core that its loop can use.",
        "Batch appends and acks, install the compiled variant, or divide the topics among servers.",
    ),
    Alert(
        "TopicsConnectionsNearlyUsedUp",
        "topics_connections / topics_connections_max > 0.8",
        "5m",
        "warning",
        "More than 80% of the allowed connections are open.",
        "Raise TOPICS_MAX_CONNECTIONS and the limit of open files, or look for clients that do not close theirs.",
    ),
    Alert(
        "TopicsConnectionsRefused",
        "increase(topics_connections_refused_total[5m]) > 0",
        "0m",
        "critical",
        "Connections were refused because too many are open.",
        "As above; clients see 429.",
    ),
    Alert(
        "TopicsCertificateExpires",
        "topics_tls_certificate_expiry_seconds > 0 and topics_tls_certificate_expiry_seconds - time() < 14 * 86400",
        "1h",
        "warning",
        "The server's certificate expires within two weeks.",
        "Renew the files of TOPICS_TLS_CERT and TOPICS_TLS_KEY, then send SIGHUP.",
    ),
    Alert(
        "TopicsQueueWithoutWorkers",
        "topics_topic_queue_ready > 0 and topics_topic_queue_in_flight == 0",
        "10m",
        "warning",
        "Jobs of {{ $labels.topic }} have waited for ten minutes and none is being worked on.",
        "Start its workers, or resume it if it is paused: topics queue peek {{ $labels.topic }}.",
    ),
    Alert(
        "TopicsQueueGrowing",
        "topics_topic_queue_ready > 1000 and deriv(topics_topic_queue_ready[30m]) > 0",
        "30m",
        "warning",
        "{{ $labels.topic }} has more than 1,000 ready jobs and grows.",
        "Start more workers, or raise their concurrency.",
    ),
    Alert(
        "TopicsDeadLetters",
        "delta(topics_queue_dead_lettered_total[15m]) > 0",
        "0m",
        "warning",
        "Jobs have failed for the last time and are dead letters now.",
        "topics queue peek of the dead-letter topic shows the reasons; topics queue redrive moves them back.",
    ),
    Alert(
        "TopicsPipelineDown",
        "topics_pipeline_up == 0",
        "5m",
        "critical",
        "No runner has reported the pipeline {{ $labels.pipeline }} for five minutes.",
        "topics pipelines status {{ $labels.pipeline }} shows the last error; start a runner.",
    ),
    Alert(
        "TopicsPipelineFallingBehind",
        "topics_pipeline_lag > 10000 and deriv(topics_pipeline_lag[15m]) > 0",
        "15m",
        "warning",
        "The pipeline {{ $labels.pipeline }} is more than 10,000 records behind, and the distance grows.",
        "Compare its rows per second with what its sources get; give the runner more cores.",
    ),
    Alert(
        "TopicsPipelineStuck",
        "topics_pipeline_oldest_unread_age_seconds > 1800",
        "5m",
        "warning",
        "The pipeline {{ $labels.pipeline }} has records that wait for half an hour.",
        "topics pipelines status {{ $labels.pipeline }} shows the topic, the state and the last error.",
    ),
    Alert(
        "TopicsPipelineDropsLateRows",
        "increase(topics_pipeline_late_rows_total[15m]) > 0",
        "0m",
        "warning",
        "The pipeline {{ $labels.pipeline }} drops rows that come after its watermark.",
        "topics pipelines logs {{ $labels.pipeline }} shows late_rows by batch; a longer watermark delay keeps them.",
    ),
    Alert(
        "TopicsPipelineExpectationNotMet",
        "increase(topics_pipeline_unmet_rows_total[15m]) > 0",
        "0m",
        "warning",
        "The pipeline {{ $labels.pipeline }} gets rows that do not meet {{ $labels.expectation }}.",
        "topics pipelines history {{ $labels.pipeline }} has unmet rows by batch; read the topic of its quarantine.",
    ),
)

HERE: Final = '{instance=~"$instance"}'
RATE: Final = f"{HERE}[$__rate_interval]"


def _quantile(share: float) -> str:
    return f"histogram_quantile({share}, sum by (le) (rate(topics_wal_fsync_latency_seconds_bucket{RATE})))"


ROWS: Final[dict[str, tuple[Panel, ...]]] = {
    "Now": (
        Panel("Ready", {"ready": f"min(topics_ready{HERE})"}, "bool_yes_no", "stat", 3),
        Panel("Uptime", {"uptime": f"min(topics_uptime_seconds{HERE})"}, "s", "stat", 3),
        Panel("Recovered", {"recovered": f"min(topics_recovery_progress{HERE})"}, "percentunit", "stat", 3),
        Panel("Topics", {"topics": f"sum(topics_topics{HERE})"}, "short", "stat", 3),
        Panel("Records", {"records": f"sum(topics_records_live{HERE})"}, "short", "stat", 3),
        Panel("Bytes of records", {"bytes": f"sum(topics_bytes_live{HERE})"}, "bytes", "stat", 3),
        Panel("Connections", {"connections": f"sum(topics_connections{HERE})"}, "short", "stat", 3),
        Panel("Writes refused", {"read-only": f"max(topics_wal_read_only{HERE})"}, "bool_yes_no", "stat", 3),
    ),
    "Traffic": (
        Panel(
            "Records",
            {
                "in": f"sum(rate(topics_records_appended_total{RATE}))",
                "out": f"sum(rate(topics_records_read_total{RATE}))",
            },
            "cps",
        ),
        Panel("Requests", {"requests": f"sum(rate(topics_requests_total{RATE}))"}, "reqps"),
        Panel(
            "Time a request holds the loop",
            {"mean": f"sum(rate(topics_request_seconds_total{RATE})) / sum(rate(topics_requests_total{RATE}))"},
            "s",
        ),
        Panel("Busiest topics", {"{{topic}}": f"topk(10, rate(topics_topic_head_seq{RATE}))"}, "cps", width=12),
        Panel("Largest topics", {"{{topic}}": f"topk(10, topics_topic_bytes_live{HERE})"}, "bytes", width=12),
    ),
    "Log": (
        Panel("Duration of a sync", {"p50": _quantile(0.5), "p99": _quantile(0.99)}, "s"),
        Panel(
            "Writes",
            {
                "frames": f"sum(rate(topics_wal_frames_total{RATE}))",
                "writes": f"sum(rate(topics_wal_batches_total{RATE}))",
                "syncs": f"sum(rate(topics_wal_fsyncs_total{RATE}))",
            },
            "wps",
        ),
        Panel("Bytes written", {"log": f"sum(rate(topics_wal_bytes_written_total{RATE}))"}, "Bps"),
        Panel(
            "Changes that wait",
            {"now": f"sum(topics_wal_queue_depth{HERE})", "peak": f"max(topics_wal_queue_depth_peak{HERE})"},
        ),
        Panel("Writes refused", {"refused": f"sum(rate(topics_wal_submit_full_total{RATE}))"}, "wps"),
        Panel("Free disk", {"{{instance}}": f"topics_disk_free_bytes{HERE}"}, "bytes"),
    ),
    "Queues": (
        Panel(
            "Jobs",
            {
                "ready": f"sum(topics_queue_jobs_ready{HERE})",
                "in flight": f"sum(topics_queue_leases_in_flight{HERE})",
                "delayed": f"sum(topics_queue_jobs_delayed{HERE})",
            },
        ),
        Panel("Longest queues", {"{{topic}}": f"topk(10, topics_topic_queue_ready{HERE})"}),
        Panel("Dead letters", {"dead": f"sum(topics_queue_dead_lettered_total{HERE})"}),
    ),
    "Process": (
        Panel("Cores in use", {"{{instance}}": f"rate(topics_cpu_seconds_total{RATE})"}),
        Panel("Memory", {"{{instance}}": f"topics_memory_bytes{HERE}"}, "bytes"),
        Panel(
            "Event loop",
            {
                "longest turn": f"max(topics_loop_longest_turn_seconds{HERE})",
                "turns above 100 ms a second": f"sum(rate(topics_loop_slow_turns_total{RATE}))",
            },
        ),
        Panel(
            "Readers and connections",
            {
                "streams": f"sum(topics_sse_connections{HERE})",
                "watch sessions": f"sum(topics_watch_sessions{HERE})",
                "connections": f"sum(topics_connections{HERE})",
                "limit": f"sum(topics_connections_max{HERE})",
            },
        ),
        Panel("Connections refused", {"refused": f"sum(rate(topics_connections_refused_total{RATE}))"}),
        Panel(
            "TLS handshakes",
            {
                "made": f"sum(rate(topics_tls_handshakes_total{RATE}))",
                "failed": f"sum(rate(topics_tls_handshake_failures_total{RATE}))",
            },
        ),
        Panel("Topics by class", {"{{class}}": f"sum by (class) (topics_topics_by_class{HERE})"}),
    ),
    "Pipelines": (
        Panel("Running", {"{{pipeline}}": f"topics_pipeline_up{HERE}"}),
        Panel("Records behind", {"{{pipeline}}": f"topics_pipeline_lag{HERE}"}),
        Panel("Oldest unread record", {"{{pipeline}}": f"topics_pipeline_oldest_unread_age_seconds{HERE}"}, "s"),
        Panel("Rows", {"{{pipeline}}": f"topics_pipeline_rows_per_second{HERE}"}, "cps"),
    ),
}


def sample_names() -> set[str]:
    """The names that an expression may use."""
    return {name + ending for name, row in FAMILIES.items() for ending in SAMPLE_ENDINGS[row.kind]}


def expressions() -> list[str]:
    lines = [line for panels in ROWS.values() for panel in panels for line in panel.lines.values()]
    return [*(alert.expression for alert in ALERTS), *lines]


def unknown_names(expression: str) -> set[str]:
    return set(re.findall(r"\btopics_\w+", expression)) - sample_names()


def rules() -> str:
    """The alerts as Prometheus reads them."""
    made = [
        {
            "alert": alert.name,
            "expr": alert.expression,
            "for": alert.lasts,
            "labels": {"severity": alert.severity},
            "annotations": {"summary": alert.summary, "description": alert.remedy, "runbook": PAGE},
        }
        for alert in ALERTS
    ]
    head = "# Made by tools/deploy_files.py; a test keeps it current.\n"
    return head + yaml.safe_dump({"groups": [{"name": "topics", "rules": made}]}, sort_keys=False, width=200)


def _shown(label: re.Match[str]) -> str:
    """A label in the text of an alert, where there is no alert."""
    return "NAME" if label[1] in ("topic", "pipeline") else f"the {label[1]}"


def page() -> str:
    """PRODUCTION.md with its table of alerts made anew."""
    lines = ["| alert | when | what to do |", "| --- | --- | --- |"]
    for alert in ALERTS:
        summary, remedy = (re.sub(r"{{ \$labels\.(\w+) }}", _shown, text) for text in (alert.summary, alert.remedy))
        lines.append(f"| `{alert.name}` ({alert.severity}) | {summary} | {remedy} |")
    before, _, rest = PRODUCTION.read_text().partition("<!-- alerts -->\n")
    _, _, after = rest.partition("\n<!-- /alerts -->")
    return "\n".join([before + "<!-- alerts -->", *lines, "<!-- /alerts -->" + after])


def dashboard() -> str:
    """The dashboard as Grafana imports it; it asks for the source of data, and offers a choice of servers."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        panels.append({"type": "row", "title": title, "id": len(panels) + 1, "gridPos": _place(0, top, 24, 1)})
        top += 1
        left = 0
        height = 4 if row[0].kind == "stat" else 8
        for panel in row:
            if left + panel.width > 24:
                left, top = 0, top + height
            panels.append(_panel(panel, len(panels) + 1, _place(left, top, panel.width, height)))
            left += panel.width
        top += height
    made = {
        "title": "topics",
        "uid": "topics",
        "description": "Made by tools/deploy_files.py from the table of metrics.",
        "tags": ["topics"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": panels,
    }
    return json.dumps(made, indent=1) + "\n"


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${source}"}
    targets = [
        {"refId": chr(ord("A") + index), "datasource": source, "expr": expression, "legendFormat": name}
        for index, (name, expression) in enumerate(panel.lines.items())
    ]
    made: dict[str, Any] = {"type": panel.kind, "title": panel.title, "id": number, "gridPos": place}
    return made | {
        "datasource": source,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}},
        "targets": targets,
    }


def _variables() -> list[dict[str, Any]]:
    source = {"type": "prometheus", "uid": "${source}"}
    query = "label_values(topics_ready, instance)"
    return [
        {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        {
            "name": "instance",
            "label": "Server",
            "type": "query",
            "datasource": source,
            "query": {"query": query, "refId": "instances"},
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        },
    ]


def main() -> None:
    wrong = sorted({name for expression in expressions() for name in unknown_names(expression)})
    if wrong:
        raise SystemExit(f"no such metric: {', '.join(wrong)}")
    RULES.write_text(rules())
    DASHBOARD.write_text(dashboard())
    PRODUCTION.write_text(page())


if __name__ == "__main__":
    main()
