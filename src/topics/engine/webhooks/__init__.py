"""Webhooks: records of a topic that are delivered to a URL."""
