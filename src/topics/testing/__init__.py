"""For tests of programs that use topics: the real server in the test's process, with a clock that the test moves."""

from topics.model.clock import ManualClock, SystemClock
from topics.testing.engine import Engine, Stuck, engine
from topics.testing.working import run_until_idle, until_idle

__all__ = ["Engine", "ManualClock", "Stuck", "SystemClock", "engine", "run_until_idle", "until_idle"]
