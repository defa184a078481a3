"""The books of the demo: they notice what is lost, doubled or wrong."""

from __future__ import annotations

import msgspec

from signalhub.actors import wire
from signalhub.actors.api.operation import encode_operation, op
from signalhub.operate.demo.board import Tally
from signalhub.operate.demo.ledger import CANCELLED, CONFIRMED, Ledger
from signalhub.operate.demo.stages import Stages
from signalhub.wire.entry import Kind, MessageBody, StoredEntry, encode_body

PRICE = 995
MINUTE_MS = 60_000


def ledger_with(order: str, status: str) -> Ledger:
    ledger = Ledger(PRICE)
    ledger.order_placed(order, "card-1")
    ledger.order_ended(order, status)
    return ledger


def wrong(ledger: Ledger) -> list[str]:
    return [one.name for one in ledger.balances() if not one.is_exact]


def test_an_order_that_ends_well_balances() -> None:
    ledger = ledger_with("1", CONFIRMED)
    ledger.delivered = 10
    ledger.stock_shown(free=9, held=0, sold=1)
    ledger.card_shown("1", charges=1, paid_cents=PRICE)

    assert wrong(ledger) == []
    assert (ledger.placed, ledger.open, ledger.confirmed) == (1, 0, 1)
    assert not ledger.unverified


def test_an_answer_that_comes_again_counts_once() -> None:
    ledger = ledger_with("1", CONFIRMED)
    ledger.order_ended("1", CONFIRMED)

    assert ledger.confirmed == 1
    assert wrong(ledger) == []


def test_a_confirmed_order_that_was_not_charged_is_noticed() -> None:
    ledger = ledger_with("1", CONFIRMED)
    ledger.card_shown("1", charges=0, paid_cents=0)

    assert wrong(ledger) == ["money"]


def test_an_order_that_was_charged_twice_is_counted() -> None:
    ledger = ledger_with("1", CONFIRMED)
    ledger.card_shown("1", charges=2, paid_cents=PRICE)

    assert ledger.doubled == 1


def test_the_card_of_a_cancelled_order_is_looked_at_until_its_money_is_back() -> None:
    ledger = ledger_with("1", CANCELLED)
    ledger.card_shown("1", charges=1, paid_cents=PRICE)
    waiting = dict(ledger.unverified)
    ledger.card_shown("1", charges=1, paid_cents=0)

    assert waiting == {"1": "card-1"}
    assert not ledger.unverified
    assert wrong(ledger) == []


def test_goods_that_vanish_are_noticed() -> None:
    ledger = Ledger(PRICE, delivered=10)
    ledger.stock_shown(free=8, held=1, sold=0)

    assert wrong(ledger) == ["goods"]


def test_a_position_that_comes_late_is_not_lost() -> None:
    tally = Tally("mail")
    for seq, at_ms in ((1, 0), (3, 1), (2, 500), (2, 600)):
        tally.took(seq, at_ms)

    assert tally.seen == 3
    assert tally.lost(10 * MINUTE_MS) == 0


def test_a_position_that_does_not_come_is_lost_after_a_minute() -> None:
    tally = Tally("mail")
    tally.took(1, 0)
    tally.took(3, 0)

    assert tally.lost(MINUTE_MS - 1) == 0
    assert tally.lost(MINUTE_MS + 1) == 1


def mail(type: str, *calls: tuple[str, str, str]) -> StoredEntry:
    """An entry with calls: from, to, method."""
    messages = [
        wire.encode(
            wire.ActorMessage(
                "request", f"c-{to}-{method}", to, encode_operation_raw(method), sender=sender
            )
        )
        for sender, to, method in calls
    ]
    body = MessageBody("m", b"c", "@(actors/shop-1)", type, wire.join(messages))
    return StoredEntry(0, Kind.MAIL, "@(actors/shop-2)", 1, 1, 1_000, encode_body(body))


def encode_operation_raw(method: str) -> msgspec.Raw:
    return msgspec.Raw(encode_operation(op(method)))


def test_every_step_of_an_order_is_told_from_the_log() -> None:
    stages, seen = Stages(), []
    for entry in (
        mail(wire.CALL, ("", "order/7", "checkout")),
        mail(wire.BATCH, ("order/7", "stock/mug", "reserve")),
        mail(wire.BATCH, ("order/7", "payment/4000", "charge")),
        mail(wire.BATCH, ("order/7", "stock/mug", "ship")),
    ):
        stages.take(entry)
        seen.append(stages.newest(1)[0].stage)
    stages.ended("7")

    assert seen == ["new", "reserving", "paying", "shipping"]
    assert sum(stages.counts().values()) == 0


def test_a_repeated_checkout_does_not_bring_an_order_back() -> None:
    stages = Stages()
    stages.take(mail(wire.CALL, ("", "order/7", "checkout")))
    stages.ended("7")
    stages.take(mail(wire.CALL, ("", "order/7", "checkout")))

    assert stages.newest(9) == []


def test_what_is_no_call_of_the_shop_is_ignored() -> None:
    stages = Stages()
    stages.take(mail(wire.BATCH, ("order/7", "stock/mug", "reserve")))
    stages.take(mail("news", ("", "order/7", "checkout")))
    stages.take(StoredEntry(0, Kind.SETTLED, "", 1, 1, 0, b""))

    assert stages.newest(9) == []
