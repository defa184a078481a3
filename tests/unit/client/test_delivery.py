"""How far a reader of a stream has come, by its own account."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from signalhub.client.delivery import RETURNED_MAX, Delivery, Progress


def of(seq: int, epoch: str = "e", *, attempt: int = 1, generation: int = 1) -> Delivery:
    return Delivery(epoch=epoch, seq=seq, attempt=attempt, id=f"{generation}.{seq}.{attempt}")


def arrived(*seqs: int) -> Progress:
    progress = Progress()
    for seq in seqs:
        progress.arrived(of(seq))
    return progress


def test_the_position_is_before_the_first_that_is_not_settled() -> None:
    assert Progress().position is None
    progress = arrived(4, 5, 6, 7, 8)

    assert progress.position == 3
    for seq, position in ((5, 3), (4, 5), (6, 6)):
        progress.settled(of(seq))
        assert progress.position == position
    progress.settled_up_to("e", 7)
    assert progress.position == 7
    assert [progress.is_open(of(seq)) for seq in (7, 8)] == [False, True]


def test_what_is_to_come_again_holds_the_position_until_it_is_settled() -> None:
    progress = arrived(1, 2)
    progress.settled(of(2))
    progress.returned(of(1))

    assert not progress.is_open(of(1))
    assert progress.position == 0
    progress.arrived(of(1))
    assert progress.is_open(of(1))
    progress.settled(of(1))
    assert progress.position == 2


def test_a_loss_closes_everything_and_what_was_in_hand_can_still_be_settled() -> None:
    progress = arrived(1, 2, 3)
    progress.settled(of(1))

    progress.lost()

    assert progress.position == 1
    assert not any(progress.is_open(of(seq)) for seq in (1, 2, 3))
    progress.settled(of(2))
    assert progress.position == 2


def test_settling_an_earlier_copy_closes_the_later_one() -> None:
    for name in ("1.1.1", None):
        progress = Progress()
        first = Delivery(epoch="m", seq=1, id=name)
        second = Delivery(epoch="m", seq=1, attempt=2, id=name and "1.1.2")
        progress.arrived(first)
        progress.lost()
        progress.arrived(second)

        progress.settled(first)

        assert not progress.is_open(second)
        assert progress.position == 1


def test_what_a_seek_sends_anew_stays_open_when_the_old_copy_is_settled() -> None:
    progress = arrived(1)
    anew = of(1, generation=2)
    progress.arrived(anew)

    progress.settled(of(1))
    progress.returned(of(1))

    assert progress.is_open(anew)
    assert progress.position == 0
    progress.settled(anew)
    assert progress.position == 1


def test_another_epoch_begins_anew_and_settlements_of_the_last_change_nothing() -> None:
    progress = arrived(7, 8)
    progress.arrived(of(1, "f"))

    progress.settled(of(1))
    progress.returned(of(1))
    progress.settled_up_to("e", 8)

    assert not progress.is_open(of(8))
    assert progress.is_open(of(1, "f"))
    assert progress.position == 0
    progress.settled(of(1, "f"))
    assert progress.position == 1


def test_what_goes_back_and_never_returns_is_forgotten_in_the_end() -> None:
    progress = Progress()
    for seq in range(1, RETURNED_MAX + 101):
        progress.arrived(of(seq))
        progress.returned(of(seq))

    assert progress.position == 100


EVENTS = st.lists(
    st.tuples(st.sampled_from(["arrive", "settle", "return", "lose"]), st.integers(1, 6)),
    max_size=60,
)


@given(EVENTS)
def test_everything_up_to_the_position_was_settled(events: list[tuple[str, int]]) -> None:
    progress = Progress()
    unsettled: set[int] = set()
    seen: set[int] = set()
    for event, seq in events:
        if event == "arrive":
            progress.arrived(of(seq))
            seen.add(seq)
            unsettled.add(seq)
        elif event == "settle":
            progress.settled(of(seq))
            unsettled.discard(seq)
        elif event == "return":
            progress.returned(of(seq))
        else:
            progress.lost()

        expected = min(unsettled, default=max(seen) + 1) - 1 if seen else None
        assert progress.position == expected
