"""`topics completion`: the script with which a shell asks this program for completions, and the names of topics."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from topics.client import TopicItem

Shell = Annotated[
    Literal["bash", "zsh", "fish"], typer.Argument(help="The shell that the script is for.", metavar="SHELL")
]
# Typer's own script does not support colons: bash splits words at them, and names of topics have them.
BASH = r"""_topics_completion() {
    local IFS=$' \t\n' line="${COMP_LINE:0:COMP_POINT}" words word=""
    read -ra words <<< "$line"
    local count=${#words[@]}
    if [[ "$line" != *[[:space:]] ]]; then
        count=$((count - 1))
        word="${words[count]}"
    fi
    IFS=$'\n'
    COMPREPLY=( $(env COMP_WORDS="$line" COMP_CWORD="$count" _TOPICS_COMPLETE=complete_bash "$1") )
    if [[ "$word" == *:* && "$COMP_WORDBREAKS" == *:* ]]; then
        COMPREPLY=( "${COMPREPLY[@]#"${word%"${word##*:}"}"}" )
    fi
}

complete -o default -F _topics_completion topics"""
# The shell waits for the reply, and nothing can be typed meanwhile.
TIMEOUT_S = 1.0
NAMES_MAX = 500


def completion(shell: Shell) -> None:
    """Print the script that lets a shell complete commands, options and names of topics.

    bash: `topics completion bash > ~/.local/share/bash-completion/completions/topics`.
    zsh: `topics completion zsh > "${fpath[1]}/_topics"`.
    fish: `topics completion fish > ~/.config/fish/completions/topics.fish`.
    """
    from typer.completion import get_completion_script  # pyright: ignore[reportPrivateImportUsage]

    from topics.cli import COMPLETION_VARIABLE, PROGRAM

    script = BASH if shell == "bash" else None
    print(script or get_completion_script(prog_name=PROGRAM, complete_var=COMPLETION_VARIABLE, shell=shell))


def topic_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Topics of the server that the command would use."""
    return [item.topic for item in _found(ctx, incomplete)]


def queue_names(ctx: typer.Context, incomplete: str) -> list[str]:
    return [item.topic for item in _found(ctx, incomplete) if item.type == "queue"]


def _found(ctx: typer.Context, prefix: str) -> list[TopicItem]:
    """None if there is no server, or no access: completion cannot show errors."""
    from topics.cli.connection import Access
    from topics.cli.failure import CommandFailed
    from topics.client import TopicsError

    access = Access(url=ctx.params.get("url"), key=ctx.params.get("key"))
    try:
        with access.open(retries_max=0, timeout_s=TIMEOUT_S) as client:
            return list(itertools.islice(client.list(prefix), NAMES_MAX))
    except (CommandFailed, TopicsError):
        return []
