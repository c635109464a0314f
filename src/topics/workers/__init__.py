"""Workers for queues: functions and coroutines that handle jobs, with leases, retries and a clean stop."""

from topics.workers.app import App
from topics.workers.job import Cancelled, Job, Reject, Retry

__all__ = ["App", "Cancelled", "Job", "Reject", "Retry"]
