"""Warnings: requests that are accepted but probably do not do what was meant. Replies have them as `warnings`."""

from __future__ import annotations

from topics.model.requests.config import TopicConfig


def config_warnings(config: TopicConfig) -> list[str]:
    """Warnings about the configuration of a topic. The queue fields of a log have no effect and no warnings."""
    if config.type == "queue" and config.max_deliveries and config.dead_letter is None:
        warning = f"max_deliveries is {config.max_deliveries}, but dead_letter names no topic"
        return [f"{warning}: jobs that fail are delivered again without end"]
    return []


def match_warnings(match: str | list[str] | None, field: str) -> list[str]:
    """Warnings about a tag to match: a bare string is compared literally, including its asterisks."""
    if not isinstance(match, str) or "*" not in match:
        return []
    pattern = match if match.endswith("*") and "*" not in match[:-1] else "prefix*"
    return [f'{field} is the exact tag "{match}", not a pattern; a pattern is ["tag", "Glob", "{pattern}"]']
