"""`topics completion`: the script by which bash, zsh or fish ask this program for what may come next."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

Shell = Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell that the script is for.")]


def completion(shell: Shell) -> None:
    """Print the script that lets a shell complete commands and options.

    bash: `topics completion bash > ~/.local/share/bash-completion/completions/topics`.
    zsh: `topics completion zsh > "${fpath[1]}/_topics"`.
    fish: `topics completion fish > ~/.config/fish/completions/topics.fish`.
    """
    from typer.completion import get_completion_script  # pyright: ignore[reportPrivateImportUsage]

    from topics.cli import COMPLETION_VARIABLE, PROGRAM

    print(get_completion_script(prog_name=PROGRAM, complete_var=COMPLETION_VARIABLE, shell=shell))
