"""The `topics` command: starts fast, and turns a failure that the user can mend into one line and exit code 2."""

from __future__ import annotations

import sys

from topics.model.errors import TopicsError

EXIT_WRONG_USE = 2


def main() -> None:
    from topics.cli.commands import app

    try:
        app()
    except TopicsError as error:
        print(f"topics: {error.message}", file=sys.stderr)
        sys.exit(EXIT_WRONG_USE)
