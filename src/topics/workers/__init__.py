"""Workers for queues: functions and coroutines that are handed jobs; leases, retries and a clean end come with it."""

from topics.workers.app import App
from topics.workers.job import Job, Reject, Retry

__all__ = ["App", "Job", "Reject", "Retry"]
