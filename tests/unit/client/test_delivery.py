"""How far a reader of a stream has come, by its own account."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from signalhub.client.delivery import RETURNED_MAX, Delivery, Progress


def of(seq: int, epoch: str = "e", *, attempt: int = 1, generation: int = 1) -> Delivery:
    return Delivery(epoch=epoch, seq=seq, attempt=attempt, id=f"{generation}.{seq}.{attempt}")


EVENTS = st.tuples(
    st.sampled_from(["arrive", "settle", "settle up to", "return", "lose"]), st.integers(1, 6)
)


@given(st.lists(EVENTS, max_size=60))
@example([("arrive", 4), ("arrive", 5), ("settle", 5), ("settle", 4)])
@example([("arrive", 1), ("arrive", 2), ("settle", 2), ("return", 1), ("arrive", 1), ("settle", 1)])
@example([("arrive", 1), ("arrive", 2), ("arrive", 3), ("settle", 1), ("lose", 1), ("settle", 2)])
@example([("arrive", 1), ("arrive", 2), ("return", 1), ("settle up to", 1)])
def test_the_position_is_before_the_first_that_is_not_settled(
    events: list[tuple[str, int]],
) -> None:
    progress = Progress()
    seen: set[int] = set()
    unsettled: set[int] = set()
    in_hand: set[int] = set()
    for event, seq in events:
        match event:
            case "arrive":
                progress.arrived(of(seq), "m")
                seen.add(seq)
                unsettled.add(seq)
                in_hand.add(seq)
            case "settle":
                progress.settled(of(seq))
                unsettled.discard(seq)
                in_hand.discard(seq)
            case "settle up to":
                progress.settled_up_to("e", seq)
                unsettled = {one for one in unsettled if one > seq}
                in_hand = {one for one in in_hand if one > seq}
            case "return":
                progress.returned(of(seq))
                in_hand.discard(seq)
            case "lose":
                progress.lost()
                in_hand.clear()

        expected = min(unsettled, default=max(seen) + 1) - 1 if seen else None
        assert progress.position == expected
        assert {one for one in range(1, 7) if progress.is_open(of(one))} == in_hand


def test_another_epoch_begins_anew_and_settlements_of_the_last_change_nothing() -> None:
    progress = Progress()
    for one in (of(7), of(8), of(1, "f")):
        progress.arrived(one, "m")

    progress.settled(of(1))
    progress.returned(of(1))
    progress.settled_up_to("e", 8)

    assert (progress.is_open(of(8)), progress.is_open(of(1, "f"))) == (False, True)
    assert progress.position == 0
    progress.settled(of(1, "f"))
    assert progress.position == 1


def test_what_goes_back_and_never_returns_is_forgotten_in_the_end() -> None:
    progress = Progress()
    for seq in range(1, RETURNED_MAX + 101):
        progress.arrived(of(seq), "m")
        progress.returned(of(seq))

    assert progress.position == 100
