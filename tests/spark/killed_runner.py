"""`topics …` that is killed at a moment of its writes to a table in an open format, with Java and all its workers.

`python -m tests.spark.killed_runner MOMENT NUMBER ARGUMENTS…`; the moments are `staged`, when Iceberg has the rows of a
batch and has not published them, and `written`, when the table has the batch and the server does not know it yet.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from topics.cli import main
from topics.client import Client
from topics_spark.open_tables.formats import IcebergTable

MOMENTS: dict[str, tuple[type, str]] = {"staged": (IcebergTable, "publish"), "written": (Client, "commit_txn")}


def kill_before(owner: type, name: str, number: int) -> None:
    """At the call with this number, counted from 1."""
    usual: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def counted(*given: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            os.killpg(0, signal.SIGKILL)
        return usual(*given, **more)

    setattr(owner, name, counted)


if __name__ == "__main__":
    moment, number, *arguments = sys.argv[1:]
    kill_before(*MOMENTS[moment], int(number))
    sys.argv = ["topics", *arguments]
    main()
