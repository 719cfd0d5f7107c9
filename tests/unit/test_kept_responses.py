"""Kept responses: each caller's own, and never more of them than there is room for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.responses.kept import Kept, KeptResponse
from gateway.errors import NotFound
from gateway.types import Message


def response(size: int = 10) -> KeptResponse:
    return KeptResponse(b"x" * size, (Message("user", "hello"),))


ONE = response().size


def test_a_caller_finds_its_own_and_nobody_elses() -> None:
    kept = Kept(10, 10 * ONE)
    kept.add("ann", "a", response())

    assert kept.get("ann", "a") == response()
    for act in (kept.get, kept.remove):
        with pytest.raises(NotFound):
            act("bob", "a")
    kept.remove("ann", "a")
    assert kept.size == 0
    with pytest.raises(NotFound):
        kept.get("ann", "a")


def test_one_who_fills_the_room_pushes_out_nobody_else() -> None:
    kept = Kept(100, 5 * ONE)
    kept.add("ann", "a", response())

    for number in range(50):
        kept.add("bob", str(number), response())

    assert kept.get("ann", "a")
    assert kept.get("bob", "49")
    assert kept.size <= 5 * ONE
    with pytest.raises(NotFound):
        kept.get("bob", "45")


@pytest.mark.parametrize("limits", [(0, 10**6), (10, 0), (10, ONE - 1)])
def test_what_has_no_room_is_not_kept(limits: tuple[int, int]) -> None:
    kept = Kept(*limits)
    kept.add("ann", "a", response())

    with pytest.raises(NotFound):
        kept.get("ann", "a")
    assert kept.size == 0


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.integers(0, 3000), st.booleans()),
        max_size=40,
    )
)
def test_neither_limit_is_ever_passed(acts: list[tuple[str, int, int, bool]]) -> None:
    kept = Kept(3, 6000)
    for caller, number, size, removes in acts:
        if removes:
            try:
                kept.remove(caller, str(number))
            except NotFound:
                continue
        else:
            kept.add(caller, str(number), response(size))
        held = {c: [i for i in range(6) if _has(kept, c, str(i))] for c in "abc"}
        assert all(len(mine) <= 3 for mine in held.values())
        assert kept.size == sum(kept.get(c, str(i)).size for c, mine in held.items() for i in mine)
        assert kept.size <= 6000


def _has(kept: Kept, caller: str, response_id: str) -> bool:
    try:
        kept.get(caller, response_id)
    except NotFound:
        return False
    return True
