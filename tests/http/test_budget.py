"""Memory for large bodies: the order of waiting, and that nothing stays reserved for a body that is not needed."""

from topics.http.budget import MemoryBudget


def test_reservations_are_granted_in_order_even_if_a_later_one_would_fit() -> None:
    granted: list[str] = []
    budget = MemoryBudget(100)
    first = budget.reserve(80, lambda: granted.append("first"))
    second = budget.reserve(60, lambda: granted.append("second"))
    third = budget.reserve(10, lambda: granted.append("third"))
    assert (first.granted, second.granted, third.granted, granted) == (True, False, False, [])
    first.release()
    assert (second.granted, third.granted, granted) == (True, True, ["second", "third"])
    assert budget.free_bytes == 30


def test_a_reservation_given_up_in_line_is_never_granted_and_lets_the_next_one_through() -> None:
    granted: list[str] = []
    budget = MemoryBudget(100)
    first = budget.reserve(80, lambda: None)
    second = budget.reserve(60, lambda: granted.append("second"))
    third = budget.reserve(20, lambda: granted.append("third"))
    second.release()
    assert granted == ["third"]
    first.release()
    third.release()
    assert (second.granted, granted, budget.free_bytes) == (False, ["third"], 100)


def test_memory_is_given_back_once_and_a_surplus_at_once() -> None:
    budget = MemoryBudget(100)
    reservation = budget.reserve(80, lambda: None)
    reservation.shrink(30)
    assert budget.free_bytes == 70
    reservation.release()
    reservation.release()
    assert budget.free_bytes == 100
