"""Warnings: requests that are accepted but probably do not do what was meant. Replies have them as `warnings`."""

from __future__ import annotations

from msgspec import UNSET

from topics.model.requests.config import LEASE_MS_MAX, LEASE_MS_MIN, ConfigPatch, ConfigRequest, TopicConfig


def config_warnings(config: TopicConfig, request: ConfigRequest | ConfigPatch) -> list[str]:
    """Warnings about the configuration of a topic. The queue fields of a log have no effect and no warnings."""
    if config.type != "queue":
        return []
    warnings: list[str] = []
    if config.max_deliveries and config.dead_letter is None:
        warning = f"max_deliveries is {config.max_deliveries}, but dead_letter names no topic"
        warnings.append(f"{warning}: jobs that fail are delivered again without end")
    if request.lease_ms is not UNSET and request.lease_ms != config.lease_ms:
        allowed = f"a lease lasts {LEASE_MS_MIN} to {LEASE_MS_MAX} ms"
        warnings.append(f"lease_ms is {config.lease_ms}, not {request.lease_ms}: {allowed}")
    for burst, rate in (("burst", "rate_per_s"), ("burst_per_tag", "rate_per_s_per_tag")):
        if getattr(config, burst) is not UNSET and getattr(config, rate) is UNSET:
            warnings.append(f"{burst} is {getattr(config, burst)}, but {rate} sets no rate: it has no effect")
    return warnings


def match_warnings(match: str | list[str] | None, field: str) -> list[str]:
    """Warnings about a tag to match: a bare string is compared literally, including its asterisks."""
    if not isinstance(match, str) or "*" not in match:
        return []
    pattern = match if match.endswith("*") and "*" not in match[:-1] else "prefix*"
    return [f'{field} is the exact tag "{match}", not a pattern; a pattern is ["tag", "Glob", "{pattern}"]']


def results_warning(queue: str) -> str:
    """The warning about results of jobs for a queue that keeps none."""
    return f'queue "{queue}" keeps no results: set its keep_results_ms'
