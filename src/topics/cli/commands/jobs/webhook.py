"""`topics webhook`: list, create, show, remove, test, rotate and resume webhooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from topics.cli.commands.completion import topic_names
from topics.cli.connection import takes_client
from topics.cli.failure import NOT_SO, CommandFailed
from topics.cli.output import print_json, print_table, say
from topics.cli.spans import shown_time, span_ms

if TYPE_CHECKING:
    from topics.client import Client, Webhook

app = typer.Typer(
    help="Deliver topics to URLs, signed and with retries.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
Name = Annotated[str, typer.Argument(help="The webhook.", metavar="WEBHOOK")]


@app.command("ls")
@takes_client
def list_webhooks(
    client: Client,
    topic: Annotated[str | None, typer.Option(help="Only webhooks of this topic.", autocompletion=topic_names)] = None,
    prefix: Annotated[str, typer.Option(help="Only names that start with this.")] = "",
    output: Annotated[Literal["text", "json"], typer.Option("--output", "-o", help="Output format.")] = "text",
) -> None:
    """List webhooks, how far they are, and what stops them."""
    import msgspec

    found = client.webhooks(topic, prefix=prefix or None)
    if output == "json":
        for webhook in found:
            shown = msgspec.to_builtins(webhook)
            for name in ("attempts", "secret", "created"):
                shown.pop(name)
            print_json(shown)
        return
    rows = (
        (
            webhook.webhook,
            webhook.topic,
            webhook.url,
            webhook.delivered_total,
            webhook.lag,
            webhook.retrying,
            webhook.dead_total,
            webhook.paused_reason or webhook.last_error or "-",
        )
        for webhook in found
    )
    print_table(("webhook", "topic", "url", "delivered", "lag", "retrying", "dead", "stopped by"), rows)


@app.command("create")
@takes_client
def create_webhook(
    client: Client,
    name: Name,
    topic: Annotated[str, typer.Argument(help="The log to deliver.", metavar="TOPIC", autocompletion=topic_names)],
    to: Annotated[str, typer.Argument(help="Where each record is posted to.", metavar="TO")],
    start: Annotated[
        str, typer.Option("--from", help="Where a new webhook starts: head, earliest, or after this seq.")
    ] = "head",
    tag: Annotated[str | None, typer.Option(help="Deliver only records with this tag.")] = None,
    form: Annotated[
        Literal["record", "data", "cloudevents"], typer.Option("--format", help="What the body is.")
    ] = "record",
    header: Annotated[
        list[str] | None, typer.Option(help="Send this header as well: 'Authorization: Bearer abc'. May be repeated.")
    ] = None,
    timeout: Annotated[str, typer.Option(help="Give an attempt this long: 500ms, 10s.")] = "10s",
    concurrency: Annotated[int, typer.Option(help="Messages under way at the same time.")] = 1,
    order: Annotated[
        Literal["topic", "tag", "none"] | None,
        typer.Option(help="What waits for records before it; tag if --concurrency is above 1.", show_default="topic"),
    ] = None,
    attempts: Annotated[int, typer.Option(help="Attempts before a record is given up.")] = 20,
    backoff: Annotated[str, typer.Option(help="The pause after a failed attempt; it doubles: 5s.")] = "5s",
    backoff_max: Annotated[str, typer.Option(help="The longest pause: 1h.")] = "1h",
    dead_letter: Annotated[
        str | None, typer.Option(help="Append records that are given up to this topic.", autocompletion=topic_names)
    ] = None,
    pause_after: Annotated[int, typer.Option(help="Pause after N records in a row were given up; 0: never.")] = 5,
    paused: Annotated[bool, typer.Option("--paused", help="Create it without delivering.")] = False,
    secret: Annotated[
        str | None, typer.Option(envvar="TOPICS_WEBHOOK_SECRET", help="Sign with this secret, whsec_….")
    ] = None,
) -> None:
    """Deliver the records of a topic to a URL. An existing webhook of this name is changed.

    Prints the secret that the server has made for a new one; it is not shown again.
    """
    made = client.put_webhook(
        name,
        topic,
        to,
        start=_start(start),
        tag=tag,
        format=form,
        headers=_headers(header or []),
        timeout_ms=span_ms(timeout, "--timeout"),
        concurrency=concurrency,
        order=order,
        max_attempts=attempts,
        backoff_ms=span_ms(backoff, "--backoff"),
        backoff_ms_max=span_ms(backoff_max, "--backoff-max"),
        dead_letter=dead_letter,
        pause_after=pause_after,
        paused=paused,
        secret=secret,
    )
    say(f"{'created' if made.created else 'changed'} the webhook {made.webhook}{', paused' if made.paused else ''}")
    _print_secret(made)


@app.command("show")
@takes_client
def show_webhook(client: Client, name: Name) -> None:
    """Print a webhook with its last attempts, as JSON."""
    import msgspec

    shown = msgspec.to_builtins(client.webhook(name))
    for field in ("secret", "created"):
        shown.pop(field)
    print_json(shown)


@app.command("test")
@takes_client
def test_webhook(client: Client, name: Name) -> None:
    """Send one message that is not a record.

    Exit code 1 if it was not accepted.
    """
    result = client.test_webhook(name)
    if not result.delivered:
        answer = f": {result.answer}" if result.answer else ""
        raise CommandFailed(f"not delivered: {result.error or f'status {result.status}'}{answer}", NOT_SO)
    say(f"delivered in {result.took_ms} ms, status {result.status}")


@app.command("rotate")
@takes_client
def rotate_webhook(
    client: Client,
    name: Name,
    grace: Annotated[str, typer.Option(help="Sign with the old secret, too, for this long: 1h, 7d.")] = "1d",
    secret: Annotated[str | None, typer.Option(envvar="TOPICS_WEBHOOK_SECRET", help="The new secret, whsec_….")] = None,
) -> None:
    """Sign with a new secret, and for a while with the one before it. Prints the secret that the server has made."""
    made = client.rotate_webhook(name, secret=secret, grace_ms=span_ms(grace, "--grace"))
    until = [shown_time(each.until_ts) for each in made.secrets if each.until_ts is not None]
    say(f"rotated the secret of {name}; the one before signs until {until[0]}" if until else f"rotated {name}")
    _print_secret(made)


@app.command("resume")
@takes_client
def resume_webhook(client: Client, name: Name) -> None:
    """Continue after a pause; what has failed is tried at once."""
    client.resume_webhook(name)
    say(f"resumed {name}")


@app.command("rm")
@takes_client
def remove_webhooks(
    client: Client,
    webhooks: Annotated[list[str], typer.Argument(help="The webhooks.", metavar="WEBHOOK")],
) -> None:
    """Remove webhooks; their topics stay.

    Exit code 1 if a webhook did not exist.
    """
    missing = [webhook for webhook in webhooks if not client.drop_webhook(webhook)]
    for webhook in webhooks:
        if webhook not in missing:
            say(f"removed {webhook}")
    if missing:
        raise CommandFailed(f"there is no webhook {', '.join(missing)}", NOT_SO)


def _start(text: str) -> Literal["head", "earliest"] | int:
    if text == "head" or text == "earliest":
        return text
    if not text.isdigit():
        raise CommandFailed(f"--from is {text!r}: it must be head, earliest or a seq")
    return int(text)


def _headers(lines: list[str]) -> dict[str, str] | None:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise CommandFailed(f"--header is {line!r}: write it as 'Name: value'")
        headers[name.strip()] = value.strip()
    return headers or None


def _print_secret(made: Webhook) -> None:
    if made.secret is not None:
        print(made.secret)
