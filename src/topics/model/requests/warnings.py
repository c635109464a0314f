"""Warnings: what is accepted although it probably does not do what was meant. Answers carry them as `warnings`."""

from __future__ import annotations

from topics.model.requests.config import TopicConfig


def config_warnings(config: TopicConfig) -> list[str]:
    """About a topic that is set up like this. On a log the fields of queues mean nothing, and say nothing."""
    if config.type == "queue" and config.max_deliveries and config.dead_letter is None:
        told = f"max_deliveries is {config.max_deliveries}, but dead_letter names no topic"
        return [f"{told}: jobs that fail are delivered again without end"]
    return []


def match_warnings(match: str | list[str] | None, field: str) -> list[str]:
    """About a tag to match: a bare string is compared as it is, with its asterisks."""
    if not isinstance(match, str) or "*" not in match:
        return []
    pattern = match if match.endswith("*") and "*" not in match[:-1] else "prefix*"
    return [f'{field} is the exact tag "{match}", not a pattern; a pattern is ["tag", "Glob", "{pattern}"]']
