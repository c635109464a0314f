"""`topics sqs`: what SQS clients need to use the queues of a server."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from topics.cli.connection import KEY_VARIABLE

app = typer.Typer(help="Use queues by SQS clients.", no_args_is_help=True, add_completion=False, rich_markup_mode=None)


@app.callback()
def group() -> None:
    pass


@app.command("credentials")
def print_credentials(
    output: Annotated[Literal["env", "json"], typer.Option("--output", "-o", help="Output format.")] = "env",
) -> None:
    """Print the access key and secret that belong to the API key in TOPICS_API_KEY, without asking a server.

    As lines for a shell: `eval "$(topics sqs credentials)"`.
    """
    import os

    from topics.api.auth import key_id_of, sqs_secret_of
    from topics.cli.failure import CommandFailed
    from topics.cli.output import print_json

    key = os.environ.get(KEY_VARIABLE)
    if not key:
        raise CommandFailed(f"{KEY_VARIABLE} is not set; a server without keys accepts any access key and secret")
    shown = {"AWS_ACCESS_KEY_ID": key_id_of(key), "AWS_SECRET_ACCESS_KEY": sqs_secret_of(key)}
    if output == "json":
        print_json(shown)
        return
    for name, value in shown.items():
        print(f"export {name}={value}")
