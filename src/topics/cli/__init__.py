"""The `topics` command: starts fast, reports an error in one line, and ends with an exit code for scripts."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

PROGRAM = "topics"
COMPLETION_VARIABLE = "_TOPICS_COMPLETE"
INTERRUPTED = 130
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def main() -> None:
    """The entry point of the installed program."""
    _open_what_is_closed()
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        code = _pipe_closed()
    except OSError as error:
        code = _cannot_write(error)
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command; its exit code. Typer would print three lines for a typing error, and a traceback for a bug."""
    import typer

    from topics.cli.command_table import root_command
    from topics.cli.failure import NOT_SO, WRONG_USE, failure_of

    command = root_command()
    if COMPLETION_VARIABLE in os.environ:
        from typer.completion import completion_init  # pyright: ignore[reportPrivateImportUsage]

        completion_init()
        command.main(prog_name=PROGRAM, complete_var=COMPLETION_VARIABLE)
    try:
        with command.make_context(PROGRAM, list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    except typer.Abort:
        _complain("given up")
        return NOT_SO
    except typer.TyperException as error:
        _complain_of_use(error)
        return WRONG_USE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _pipe_closed()
    except OSError as error:
        return _cannot_write(error)
    except Exception as error:
        outcome = failure_of(error)
        if outcome is None:
            raise
        _complain(outcome.line)
        return outcome.code
    return 0


def _complain(line: str) -> None:
    print(f"{PROGRAM}: {line}", file=sys.stderr)


def _complain_of_use(error: Exception) -> None:
    """One line that names the help page; a group called without a command shows that page itself."""
    from typer.exceptions import TyperException

    from topics.cli.failure import wrong_use

    assert isinstance(error, TyperException)
    context = getattr(error, "ctx", None)
    path: str = context.command_path if context is not None else PROGRAM
    message = error.format_message()
    if context is not None and message == context.get_help():
        print(message, file=sys.stderr)
        return
    _complain(f"{wrong_use(error)}; see {path} --help")


def _open_what_is_closed() -> None:
    """With `>&-` or `<&-` a stream is closed: it is replaced by one that reads nothing and discards what is written.

    Otherwise the next file or socket would get its number, and child processes would use it as that stream.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def _pipe_closed() -> int:
    """The reader has closed the pipe: what is still in the buffer is dropped without a message."""
    from topics.cli.failure import PIPE_CLOSED

    _drop_output()
    return PIPE_CLOSED


def _cannot_write(error: OSError) -> int:
    """The output cannot be written, because the disk is full. Commands report errors of other files themselves."""
    from topics.cli.failure import NOT_SO

    if error.filename is not None or error.errno not in UNWRITABLE:
        raise error
    _drop_output()
    _complain(f"cannot write the output: {error.strerror}; free some space, and run the command again")
    return NOT_SO


def _drop_output() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
