"""The timer wheel: nothing falls due early or is lost, and what is removed does not fall due at all."""

from hypothesis import given
from hypothesis import strategies as st

from topics.model.timer_wheel import EMPTY_BUCKETS_MAX, TimerWheel

WIDTH = 5
TIMES = st.integers(0, 200)


@given(dues=st.lists(TIMES, max_size=50), removed=st.sets(st.integers(0, 49)), looks=st.lists(TIMES, max_size=10))
def test_items_fall_due_in_order_never_early_and_late_by_less_than_the_width(
    dues: list[int], removed: set[int], looks: list[int]
) -> None:
    wheel = TimerWheel[int](WIDTH)
    numbers = [wheel.add(item, due) for item, due in enumerate(dues)]
    for item in removed & set(range(len(dues))):
        wheel.remove(item, numbers[item])
    left = set(range(len(dues))) - removed
    for now in sorted(looks):
        taken = wheel.take_due(now)
        assert [numbers[item] for item in taken] == sorted(numbers[item] for item in taken)
        assert all(dues[item] <= now for item in taken)
        left -= set(taken)
        assert all(dues[item] > now - WIDTH for item in left)
        assert wheel.next_due == min((numbers[item] * WIDTH for item in left), default=None)
        assert len(wheel) == len(left)
    assert set(wheel.take_due(1_000)) == left


def test_an_item_may_be_removed_after_it_was_taken() -> None:
    wheel = TimerWheel[str](WIDTH)
    number = wheel.add("a", 3)
    assert wheel.take_due(5) == ["a"]
    wheel.remove("a", number)
    assert (len(wheel), wheel.next_due) == (0, None)


def test_buckets_that_became_empty_do_not_pile_up() -> None:
    wheel = TimerWheel[int](WIDTH)
    for item in range(10 * EMPTY_BUCKETS_MAX):
        wheel.remove(item, wheel.add(item, 1_000_000 + WIDTH * item))
    assert len(wheel._order) <= EMPTY_BUCKETS_MAX + 1


def test_items_survive_the_removal_of_empty_buckets() -> None:
    wheel = TimerWheel[int](WIDTH)
    kept = range(0, 10 * EMPTY_BUCKETS_MAX, 7)
    for item in range(10 * EMPTY_BUCKETS_MAX):
        number = wheel.add(item, WIDTH * item)
        if item not in kept:
            wheel.remove(item, number)
    assert wheel.take_due(1_000_000) == list(kept)


@given(
    dues=st.lists(st.integers(0, 60), max_size=40),
    now=st.integers(0, 70),
    most=st.integers(1, 7),
    width=st.integers(1, 9),
)
def test_taking_a_few_at_a_time_gives_the_same_in_the_end(dues: list[int], now: int, most: int, width: int) -> None:
    at_once, bit_by_bit = TimerWheel[int](width), TimerWheel[int](width)
    for item, due in enumerate(dues):
        at_once.add(item, due)
        bit_by_bit.add(item, due)
    taken: list[int] = []
    while some := bit_by_bit.take_some(now, most):
        assert len(some) <= most
        taken += some
    assert taken == at_once.take_due(now)
    assert bit_by_bit.next_due == at_once.next_due
