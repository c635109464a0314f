"""`topics hash`: a password on the way into the setting `users`, never on the command line."""

from __future__ import annotations


def hash_a_password() -> None:
    """Ask for a password, or read it from standard input, and print the hash that the setting `users` takes."""
    import getpass
    import sys

    from topics.api.groups.users import hash_password
    from topics.cli.failure import CommandFailed

    password = getpass.getpass() if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    if not password:
        raise CommandFailed("there is no password; type one, or give it as a line of standard input")
    print(hash_password(password))
