"""`--url` and `--key`: the server of a command, and its client."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from topics.cli.failure import NO_ACCESS, CommandFailed
from topics.cli.output import print_warnings

if TYPE_CHECKING:
    from topics.client import Client

URL_VARIABLE = "TOPICS_URL"
PORT_VARIABLE = "TOPICS_PORT"
KEY_VARIABLE = "TOPICS_API_KEY"
TOKEN_VARIABLE = "TOPICS_TOKEN"
USER_VARIABLE = "TOPICS_USER"
PASSWORD_VARIABLE = "TOPICS_PASSWORD"
TLS_VARIABLES = ("TOPICS_CA_FILE", "TOPICS_CLIENT_CERT", "TOPICS_CLIENT_KEY")
CLIENT_VARIABLES = (URL_VARIABLE, TOKEN_VARIABLE, USER_VARIABLE, PASSWORD_VARIABLE, *TLS_VARIABLES)
URL_DEFAULT = "http://127.0.0.1:4000"
RETRIES_QUICK = 2


class Access(NamedTuple):
    """The server according to flags and variables."""

    url: str | None = None
    key: str | None = None
    token: str | None = None
    user: str | None = None

    def open(self, **options: Any) -> Client:
        from topics.client import Client, InvalidRequest

        print_warnings()
        password = _password_of(self.user) if self.user and not self.token else None
        try:
            return Client(self.url, self.key, token=self.token, user=self.user, password=password, **options)
        except InvalidRequest as error:
            raise CommandFailed(error.message) from None


def takes_client(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command `--url` and `--key`; its first argument is a client that is open while the command runs."""

    def run(access: Access, **given: Any) -> None:
        with access.open(retries_max=RETRIES_QUICK) as client:
            command(client, **given)

    return _with_flags(command, run, [_url_flag(), _key_flag()])


def takes_patient_client(command: Callable[..., None]) -> Callable[..., None]:
    """The same for long commands, which continue after a restart of the server."""

    def run(access: Access, **given: Any) -> None:
        from topics.client import ConnectionFailed, NotPrimary

        with access.open(retries_max=RETRIES_QUICK) as client:
            try:
                # A wrong address is reported at once; later failures are retried.
                client.health()
            except (ConnectionFailed, NotPrimary):
                # A standby replies: it may take over while the command waits.
                if not any(client.roles().values()):
                    raise
        with access.open() as client:
            command(client, **given)

    return _with_flags(command, run, [_url_flag(), _key_flag()])


def takes_member(command: Callable[..., None]) -> Callable[..., None]:
    """The same for the routes of consumer groups, which need a token or a login instead of a key."""

    def run(access: Access, **given: Any) -> None:
        from topics.client import Unauthorized

        with access.open(retries_max=RETRIES_QUICK) as client:
            try:
                command(client, **given)
            except Unauthorized as error:
                raise CommandFailed(
                    f"{error.message.rstrip('.')}; set {TOKEN_VARIABLE}, or log in with --user", NO_ACCESS
                ) from None

    return _with_flags(command, run, [_url_flag(), _token_flag(), _user_flag()])


def takes_access(command: Callable[..., None]) -> Callable[..., None]:
    """The same for commands that open clients themselves; the first argument is an `Access`."""
    return _with_flags(command, command, [_url_flag(), _key_flag()])


def _with_flags(
    command: Callable[..., None], run: Callable[..., None], flags: list[inspect.Parameter]
) -> Callable[..., None]:
    """`run`, as a function with the parameters of `command` except its first one, and the flags."""
    # The client's type is used by type checkers only: importing it here would load it for `--help`.
    signature = inspect.signature(command, eval_str=True, locals={"Client": object})
    own = list(signature.parameters.values())[1:]

    @functools.wraps(command)
    def with_flags(**given: Any) -> None:
        access = Access(**{flag.name: given.pop(flag.name) for flag in flags})
        run(access, **given)

    parameters = [*(_keyword(parameter) for parameter in own), *flags]
    with_flags.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    with_flags.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del with_flags.__wrapped__
    return with_flags


def _keyword(parameter: inspect.Parameter) -> inspect.Parameter:
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def _flag(name: str, option: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=str | None)


def _url_flag() -> inspect.Parameter:
    shown = (
        f"The server, {URL_DEFAULT} if not given; {PORT_VARIABLE} sets another port. "
        "Several, separated by commas: the primary and its standbys."
    )
    return _flag("url", typer.Option(None, "--url", envvar=URL_VARIABLE, metavar="URL", help=shown))


def _key_flag() -> inspect.Parameter:
    shown = "An API key. The variable is better: other users of a machine can read a process's arguments."
    return _flag("key", typer.Option(None, "--key", envvar=KEY_VARIABLE, metavar="KEY", help=shown))


def _token_flag() -> inspect.Parameter:
    shown = "A token for consumer groups; or log in with --user."
    return _flag("token", typer.Option(None, "--token", envvar=TOKEN_VARIABLE, metavar="TOKEN", help=shown))


def _user_flag() -> inspect.Parameter:
    shown = f"Log in as this user; the password is read from {PASSWORD_VARIABLE}, or asked for on a terminal."
    return _flag("user", typer.Option(None, "--user", envvar=USER_VARIABLE, metavar="NAME", help=shown))


def _password_of(user: str) -> str:
    import getpass
    import os
    import sys

    password = os.environ.get(PASSWORD_VARIABLE)
    if password is None and sys.stdin.isatty():
        password = getpass.getpass(f"Password of {user}: ", stream=sys.stderr)
    if not password:
        raise CommandFailed(f"no password for {user}; set {PASSWORD_VARIABLE}")
    return password
