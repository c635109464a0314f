"""An alias: the path under which `partition_for` was documented first."""

from topics.model.requests.groups import partition_for

__all__ = ["partition_for"]
