"""`topics doctor`: whether this machine and these settings suit a server, and what to do if not."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from topics.cli.commands.operations.checks import findings
from topics.cli.failure import FINE, NOT_SO
from topics.cli.flags import Loaded, takes_settings
from topics.cli.output import print_json


@takes_settings
def doctor(
    loaded: Loaded,
    output: Annotated[Literal["text", "json"], typer.Option("--output", "-o", help="How to print it.")] = "text",
) -> None:
    """Check limits, disk, clock, memory and settings on the machine where a server runs or will run.

    Takes the flags, variables and file of `topics serve`. Exit code 1 if there is a warning or an error.
    """
    found = list(findings(loaded.settings))
    if output == "json":
        print_json([finding._asdict() for finding in found])
    else:
        for finding in found:
            print(f"{finding.severity:<7}  {finding.subject}: {finding.text}")
            if finding.todo:
                print(f"{'':7}  {'':{len(finding.subject)}}  {finding.todo}")
    raise typer.Exit(NOT_SO if any(each.severity in ("warning", "error") for each in found) else FINE)
