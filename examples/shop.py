"""A shop of durable actors: an order reserves goods and charges a card, or undoes both.

Kill any of its processes at any moment and restart it: no order is lost, no card is charged twice,
and goods and money add up. Start a hub with `signalhub serve`, then two hosts, each in a separate
terminal,

    signalhub actors run examples.shop:Order --data orders
    signalhub actors run examples.shop:Stock examples.shop:Payment --data goods

then be the customer: `python examples/shop.py`, with `--url URL` or SIGNALHUB_URL for a hub that is
elsewhere. One host can also serve all three classes.
On the command line, fill a shelf and make an order with

    signalhub actors call stock/blue-mug deliver 10
    signalhub actors call order/17 checkout '"blue-mug"'
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import sys
from functools import partial
from typing import Any, ClassVar

import signalhub
from signalhub.actors import (
    Actor,
    ActorHub,
    CallError,
    CallTimeout,
    CallUndeliverable,
    Ref,
    Token,
    op,
    ref,
    remote,
)
from signalhub.actors.api.operation import Operation

HUB = "ws://127.0.0.1:8787/ws"

PRICE = 995
# The number decides how the bank behaves; it may have a prefix, as in `mine-4000…`.
GOOD_CARD = "4000000000000077"
DECLINED_CARD = "4000000000000002"
SILENT_CARD = "4000000000000119"


class SoldOut(Exception):
    """Not enough goods are left."""


class Declined(Exception):
    """The bank declines."""


class Stock(Actor):
    """One product, named by its key. Every step is done at most once per order."""

    @remote
    def deliver(self, count: int) -> int:
        """Put goods on the shelf."""
        return self._add("free", count)

    @remote
    def reserve(self, order: str, count: int) -> None:
        if self.state.get("free", 0) < count:
            raise SoldOut("it is sold out")
        self._add("free", -count)
        self.state.put(f"held/{order}", count)

    @remote
    def release(self, order: str) -> int:
        """Put back what an order has reserved, if anything."""
        count = self._held(order)
        self._add("free", count)
        return count

    @remote
    def ship(self, order: str) -> int:
        """Ship what an order has reserved."""
        count = self._held(order)
        self._add("sold", count)
        return count

    @remote
    def count(self) -> dict[str, int]:
        held = self.state.list("held/").values()
        return {
            "free": self.state.get("free", 0),
            "held": sum(held),
            "sold": self.state.get("sold", 0),
        }

    def _add(self, what: str, count: int) -> int:
        total: int = self.state.get(what, 0) + count
        self.state.put(what, total)
        return total

    def _held(self, order: str) -> int:
        count: int = self.state.get(f"held/{order}", 0)
        self.state.delete(f"held/{order}")
        return count


class Payment(Actor):
    """One card, named by its number, and what it has paid."""

    @remote
    def charge(self, order: str, cents: int) -> int | Token:
        if self.key.endswith(DECLINED_CARD):
            raise Declined(f"the bank declines {cents / 100:.2f}")
        self.state.put(f"paid/{order}", cents)
        self.state.put(f"charges/{order}", self.state.get(f"charges/{order}", 0) + 1)
        if self.key.endswith(SILENT_CARD):
            # The worst case: the bank takes the money, and no answer ever arrives.
            return self.defer()
        return cents

    @remote
    def refund(self, order: str) -> int:
        """Refund what an order has paid, if anything."""
        cents: int = self.state.get(f"paid/{order}", 0)
        self.state.delete(f"paid/{order}")
        return cents

    @remote
    def paid(self) -> dict[str, int]:
        """What each order has paid and not been refunded."""
        return self._by_order("paid/")

    @remote
    def charges(self) -> dict[str, int]:
        """How often each order was charged."""
        return self._by_order("charges/")

    def _by_order(self, prefix: str) -> dict[str, int]:
        return {key.removeprefix(prefix): n for key, n in self.state.list(prefix).items()}


class Order(Actor):
    """One order: `new`, `reserving`, `unpaid`, `paying`, and finally `confirmed` or `cancelled`.

    Every method returns at once. The next step is stored before anything is sent, so the order
    continues after a crash of any participant.
    """

    payment_s: ClassVar[float] = 3.0
    unpaid_s: ClassVar[float] = 15 * 60.0

    @remote
    def checkout(
        self, sku: str, count: int = 1, cents: int = PRICE, card: str | None = GOOD_CARD
    ) -> dict[str, Any] | Token:
        """Reserve goods and charge the card; if that is `None`, wait for `pay`.

        The answer comes when the order has ended. A repeated call continues the same order.
        """
        if self._status == "new":
            self.state.put("order", {"sku": sku, "count": count, "cents": cents, "card": card})
            self.state.put("status", "reserving")
            self.call(ref(Stock, sku), op(Stock.reserve, self.key, count), then=self.on_reserved)
        return self._answer_at_the_end()

    @remote
    def pay(self, card: str) -> dict[str, Any] | Token:
        """Pay an order that waits for it; the answer comes when the order has ended."""
        if self._status == "new":
            raise LookupError(f"nothing was ordered as {self.key}")
        if self._status in ("reserving", "unpaid") and not self._order["card"]:
            self.state.put("order", self._order | {"card": card})
            if self._status == "unpaid":
                self._charge(card)
        return self._answer_at_the_end()

    @remote
    def status(self) -> dict[str, Any]:
        return {"order": self.key, "status": self._status, "why": self.state.get("why", "")}

    @remote
    def troubles(self) -> list[str]:
        """What failed for good and needs attention; `signalhub actors redrive` retries it."""
        return [letter.error for letter in self.dead_letters()]

    # The steps of an order.

    def on_reserved(self, outcome: CallError | None) -> None:
        if isinstance(outcome, CallError):
            self._cancel(str(outcome))
        elif card := self._order["card"]:
            self._charge(card)
        else:
            self.state.put("status", "unpaid")
            self.alarms.schedule(self.unpaid_s, self.on_unpaid, id="unpaid")

    def on_unpaid(self) -> None:
        """Reservations expire."""
        if self._status == "unpaid":
            self._cancel("it was not paid")

    def _charge(self, card: str) -> None:
        self.state.put("status", "paying")
        self.alarms.cancel("unpaid")
        # The key guarantees that an order is charged at most once, whatever calls this.
        self.call(
            ref(Payment, card),
            op(Payment.charge, self.key, self._order["cents"]),
            then=self.on_charged,
            timeout=self.payment_s,
            key="charge",
        )

    def on_charged(self, outcome: CallError | int) -> None:
        if isinstance(outcome, CallError):
            self._cancel("the bank is silent" if isinstance(outcome, CallTimeout) else str(outcome))
            return
        self._must(ref(Stock, self._order["sku"]), op(Stock.ship, self.key))
        self._end("confirmed")

    # The end of an order.

    def _cancel(self, why: str) -> None:
        """Undo everything.

        A timeout does not say whether the other side has acted. That does not matter: undoing does
        nothing if there is nothing to undo, and calls to one actor keep their order, so the undo
        cannot arrive before what it undoes.
        """
        self._must(ref(Stock, self._order["sku"]), op(Stock.release, self.key))
        if self._status == "paying":
            self._must(ref(Payment, self._order["card"]), op(Payment.refund, self.key))
        self._end("cancelled", why)

    def _must(self, target: Ref, operation: Operation) -> None:
        # Without a timeout: it must happen, however long the other host is away.
        self.call(target, operation, then=partial(self.on_done, operation.method), timeout=None)

    def on_done(self, what: str, outcome: CallError | int) -> None:
        """Raise, so that it is retried and finally becomes a dead letter for an operator."""
        if isinstance(outcome, CallError):
            raise RuntimeError(f"{what} failed: {outcome}")

    def _end(self, status: str, why: str = "") -> None:
        self.state.put("status", status)
        self.state.put("why", why)
        for waiting in self.state.get("waiting", []):
            self.resolve(Token(waiting), self.status())
        self.state.delete("waiting")

    def _answer_at_the_end(self) -> dict[str, Any] | Token:
        if self._status in ("confirmed", "cancelled"):
            return self.status()
        token = self.defer()
        self.state.put("waiting", [*self.state.get("waiting", []), token.id])
        return token

    @property
    def _status(self) -> str:
        status: str = self.state.get("status", "new")
        return status

    @property
    def _order(self) -> dict[str, Any]:
        order: dict[str, Any] = self.state.get("order", {})
        return order


async def main(url: str) -> None:
    # Actors keep their state permanently, so every run uses new names.
    run = secrets.token_hex(4)
    async with ActorHub(url) as hub:
        sku = f"mug-{run}"
        await hub.ask(ref(Stock, sku), op(Stock.deliver, 3))
        for number, (count, card) in enumerate(
            [(2, GOOD_CARD), (1, DECLINED_CARD), (2, GOOD_CARD), (1, SILENT_CARD)], start=1
        ):
            order = ref(Order, f"{run}-{number}")
            checkout = op(Order.checkout, sku, count, PRICE * count, f"{run}-{card}")
            ended = await hub.ask(order, checkout)
            print(f"{count} on card {card[-4:]}: {ended['status']} {ended['why']}".rstrip())
        print(await hub.ask(ref(Stock, sku), op(Stock.count)))


def hub_url() -> str:
    """Return the hub's URL, given with or without the name of the option."""
    parser = argparse.ArgumentParser(
        description="Orders that are confirmed, or cancelled and undone."
    )
    parser.add_argument("given", nargs="?", metavar="URL", help="the same as --url URL")
    parser.add_argument("--url", help=f"the hub; by default SIGNALHUB_URL, or {HUB}")
    arguments = parser.parse_args()
    return arguments.url or arguments.given or os.environ.get("SIGNALHUB_URL") or HUB


if __name__ == "__main__":
    try:
        asyncio.run(main(hub_url()))
    except signalhub.Unavailable as error:
        sys.exit(f"{error}; start one with `signalhub serve`, or use another one with --url URL")
    except CallUndeliverable as error:
        sys.exit(f"{error}; start the hosts, as the beginning of this file says")
    except (CallError, signalhub.ClientError) as error:
        sys.exit(str(error))
