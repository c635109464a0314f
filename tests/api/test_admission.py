"""The elastic throttle by itself: smoothing, order, recovery, and who is parked."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.api.admission import PARKED_MAX, Pressure
from topics.engine.core.pending import PendingChange, settled
from topics.engine.core.waiting.runner import Signal
from topics.model.errors import Throttled
from topics.model.variant import VARIANT

pytestmark = pytest.mark.skipif(VARIANT == "compiled", reason="a compiled class takes no stand-in for another")


class FakeCall:
    """As much of a call as the throttle looks at."""

    def __init__(self) -> None:
        self.parked_s = 0.0
        self.throttled_s = 0.0
        self.request = self
        self.body = b"x" * 10


class Bench:
    def __init__(self) -> None:
        self.debt_bytes = 0
        self.now_s = 0.0
        self.pressure = Pressure(lambda: self.debt_bytes, lambda: self.now_s)

    def sample(self, lag_ms: float, times: int = 1) -> None:
        for _ in range(times):
            self.now_s += 0.05
            self.pressure.sample(lag_ms)

    def sheds(self, priority: int, call: FakeCall | None = None) -> bool:
        return self.pressure.sheds(cast("Any", call or FakeCall()), priority)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_single_hiccup_sheds_nobody(bench: Bench) -> None:
    bench.sample(lag_ms=60_000)
    assert not bench.sheds(-1000)


def test_lasting_lag_sheds_low_priorities_first(bench: Bench) -> None:
    order: list[int] = []
    for _ in range(40):
        bench.sample(lag_ms=1000)
        order += [priority for priority in (-900, 0, 500, 900) if bench.sheds(priority) and priority not in order]
    assert order == [-900, 0, 500, 900]
    assert not bench.sheds(1000)


def test_journal_debt_is_pressure_too(bench: Bench) -> None:
    bench.debt_bytes = 64 << 20
    bench.sample(lag_ms=0, times=20)
    assert bench.sheds(0)


def test_pressure_passes(bench: Bench) -> None:
    bench.sample(lag_ms=1000, times=40)
    bench.sample(lag_ms=0, times=40)
    assert bench.pressure.floor is None
    assert not bench.sheds(-1000)


def test_more_pressure_means_a_longer_wait(bench: Bench) -> None:
    calm = bench.pressure.retry_ms
    bench.sample(lag_ms=1000, times=40)
    assert bench.pressure.retry_ms > calm
    assert bench.pressure.refusal().detail["retry_after_ms"] == bench.pressure.retry_ms


def test_a_parked_call_is_run_again_at_each_sample_and_its_wait_counted(bench: Bench) -> None:
    call, runs = FakeCall(), 0

    def write() -> PendingChange:
        nonlocal runs
        runs += 1
        if runs < 3:
            raise bench.pressure.refusal()
        return settled(1, "written")

    written: list[object] = []
    steps = bench.pressure.submit_later(
        cast("Any", call),
        bench.pressure.refusal(),
        write,
        lambda _, change: written.append(change.result),
        opted_out=True,
    )
    for sample in range(3):
        signal = next(steps)
        assert runs == sample
        resumed: list[None] = []
        assert isinstance(signal, Signal)
        signal.wait(cast("Any", SimpleNamespace(resume=lambda resumed=resumed: resumed.append(None))))
        bench.sample(lag_ms=0)
        assert resumed == [None]
    with pytest.raises(StopIteration):
        next(steps)
    assert written == ["written"]
    assert call.throttled_s == pytest.approx(0.15)


@pytest.mark.parametrize(("detail", "opted_out"), [({"retry_after_ms": 1}, False), ({"limit": "max_topics"}, True)])
def test_a_refusal_that_is_not_for_pressure_or_not_opted_out_of_stands(
    bench: Bench, detail: dict[str, Any], opted_out: bool
) -> None:
    refused = Throttled("no", **detail)
    with pytest.raises(Throttled) as raised:
        bench.pressure.submit_later(
            cast("Any", FakeCall()), refused, lambda: settled(1), lambda _, change: None, opted_out=opted_out
        )
    assert raised.value is refused


def test_nobody_is_parked_for_ever(bench: Bench) -> None:
    bench.sample(lag_ms=1000, times=40)
    call = FakeCall()
    call.throttled_s = 31.0
    assert not bench.sheds(-1000, call)


def test_the_number_of_parked_calls_is_bounded(bench: Bench) -> None:
    for _ in range(PARKED_MAX):
        bench.pressure.park(cast("Any", FakeCall()))
    with pytest.raises(Throttled):
        bench.pressure.park(cast("Any", FakeCall()))


@given(st.lists(st.floats(0, 1e6), max_size=50))
def test_the_level_stays_between_0_and_1(lags_ms: list[float]) -> None:
    bench = Bench()
    for lag_ms in lags_ms:
        bench.sample(lag_ms)
        assert 0.0 <= bench.pressure.level <= 1.0
        assert bench.pressure.floor is None or -1000 <= bench.pressure.floor <= 1000
