"""Topics in a notebook: `%load_ext topics_spark.notebooks`, then `%%topics` for queries and `live()` to watch."""

from __future__ import annotations

from typing import Any

from topics_spark.notebooks.live_view import live
from topics_spark.notebooks.querying import query
from topics_spark.notebooks.results import QueryResult

__all__ = ["QueryResult", "live", "load_ipython_extension", "query"]


def load_ipython_extension(shell: Any) -> None:
    """Called by IPython for `%load_ext`."""
    from topics_spark.notebooks.magic import magic_for

    shell.register_magic_function(magic_for(shell), magic_kind="line_cell", magic_name="topics")
