"""The fixtures that users import, as they import them."""

from topics.testing.fixtures import topics_client, topics_engine

__all__ = ["topics_client", "topics_engine"]
