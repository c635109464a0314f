"""What the configuration of a queue means for an outcome: how long a failed job waits, whether results are kept."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from msgspec import UNSET

from topics.client import AsyncClient
from topics.client.errors import ConnectionFailed, Timeout, TopicsError
from topics.model.clock import Clock
from topics.model.requests.config import RetryBackoff, TopicConfig
from topics.workers.job import JobOutcome

# If neither the handler nor the queue sets a delay: 1 s, doubling up to 5 minutes.
BACKOFF = RetryBackoff(initial_ms=1_000, factor=2.0, max_ms=300_000, jitter=0.25)
# Few different delays, so that jobs that fail together are returned by few calls.
JITTER_STEPS = 16
KNOWN_MS_MAX = 1_000


class Failing:
    """Decides by the queue's configuration, which is read when a job fails or has a result, at most once a second."""

    def __init__(self, client: AsyncClient, topic: str, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._topic = topic
        self._config = TopicConfig()
        self._read_ms = -math.inf

    async def look(self) -> None:
        """Read the configuration; raises if the server does not reply."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._read_ms < KNOWN_MS_MAX:
            return
        try:
            self._config = (await self._client.state(self._topic, touch=False)).config
        except (ConnectionFailed, Timeout):
            raise
        except TopicsError as error:
            if error.status == 429 or error.status >= 500:
                raise
        self._read_ms = now_ms

    @property
    def keeps_results(self) -> bool:
        return self._config.keep_results_ms is not UNSET

    @property
    def dead_letter(self) -> str | None:
        return self._config.dead_letter

    def is_last(self, deliveries: int) -> bool:
        """Whether the server would not deliver the job again."""
        deliveries_max = self._config.max_deliveries
        return bool(deliveries_max and self._config.dead_letter) and deliveries >= deliveries_max

    def settled(self, outcome: JobOutcome, deliveries: int) -> JobOutcome:
        """The outcome to send: after its last delivery a job goes to the dead letters, others are delayed."""
        if outcome.acked or outcome.dead_letter or outcome.released:
            return outcome
        if self.is_last(deliveries):
            return replace(outcome, delay_ms=None, dead_letter=True, last=True)
        if outcome.delay_ms is None and self._config.retry_backoff is UNSET:
            return replace(outcome, delay_ms=BACKOFF.rest_ms(deliveries, random.randrange(JITTER_STEPS) / JITTER_STEPS))
        return outcome
