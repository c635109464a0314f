"""Pauses between failing attempts: growing, randomised, never shorter than the server asks for."""

from __future__ import annotations

import random

from topics.client import TopicsError

PAUSE_S_MIN, PAUSE_S_MAX = 0.05, 5.0


class Pauses:
    def __init__(self) -> None:
        self._next_s = PAUSE_S_MIN

    def reset(self) -> None:
        self._next_s = PAUSE_S_MIN

    @property
    def fresh(self) -> bool:
        """Whether the attempt before the last one succeeded."""
        return self._next_s == PAUSE_S_MIN

    def after(self, error: TopicsError) -> float:
        pause_s = self._next_s * random.uniform(0.5, 1.0)
        self._next_s = min(PAUSE_S_MAX, self._next_s * 2)
        return pause_s + (error.retry_after_s or 0.0)
