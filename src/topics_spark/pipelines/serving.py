"""The runner as a process: starts Spark, handles signals, drains queries."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from topics_spark.class_archive import is_making, names_archive
from topics_spark.commands import point_at
from topics_spark.pipelines.assignment import RunnerConfig
from topics_spark.pipelines.guard import SESSION_SETTINGS
from topics_spark.pipelines.leases import RENEW_S
from topics_spark.source.progress import waiting
from topics_spark.start import MASTER_DEFAULT, prepare, settings

if TYPE_CHECKING:
    from topics.cli.connection import Access

# The expensive compiler waits for code that stays hot: at the start it would take the cores of the first batches.
JAVA: Final = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
# To write an archive of its classes takes Java some seconds.
JAVA_END_S_MAX: Final = 60.0
JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
# Checkpoints are written per batch; small ones make a short trigger possible.
SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.shuffle.partitions": "2",
    JAVA_OPTIONS: f"{settings()[JAVA_OPTIONS]} {JAVA}",
    **SESSION_SETTINGS,
}


def serve(
    access: Access,
    config: RunnerConfig,
    names: Collection[str],
    *,
    master: str | None,
    runner: str | None,
    conf: Mapping[str, str],
) -> None:
    from topics_spark.pipelines.runner import Runner
    from topics_spark.start import quiet_errors, session

    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    # A line for every request would hide the events of pipelines.
    for library in ("httpx2", "httpcore2", "py4j"):
        logging.getLogger(library).setLevel(logging.WARNING)
    quiet_errors()
    stop = threading.Event()
    _stop_on_signals(stop)
    name = runner or f"{socket.gethostname()}-{os.getpid()}"
    # No retries beyond a lease: each turn decides again.
    with access.open(timeout_s=RENEW_S, retry_s_max=RENEW_S) as client:
        client.health()
        point_at(client.url, access.key)
        for directory in (config.state_dir, config.tables_dir):
            if "://" not in directory:
                Path(directory).mkdir(parents=True, exist_ok=True)
        prepare(
            os.environ,
            master or os.environ.get("SPARK_MASTER") or MASTER_DEFAULT,
            "pipelines",
            make_archive=not names_archive(conf),
        )
        with waiting("starting Spark", "Spark is ready"):
            spark: Any = session("topics pipelines", master=master, config={**SETTINGS, **conf})
        # Spark's own handler would end the process before queries are drained.
        _stop_on_signals(stop)
        java: Any = spark.sparkContext._gateway
        try:
            Runner(spark, client, config, name, names).run(stop)
        finally:
            spark.stop()
            if is_making(os.environ):
                _wait_for_java(java)


def _wait_for_java(gateway: Any) -> None:
    """A service manager and a container kill what is left when the runner has ended."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        gateway.shutdown()
        # Java ends with its standard input.
        gateway.proc.stdin.close()
        gateway.proc.wait(JAVA_END_S_MAX)


def _stop_on_signals(stop: threading.Event) -> None:
    def heard(number: int, frame: FrameType | None) -> None:
        del number, frame
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, heard)
