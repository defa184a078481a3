"""The books of the demo's shop: what must hold, whatever is killed. No I/O.

Every number comes from a part that does not know the others: customers say what was placed and how
it ended, cards what they have paid, the stock what it holds.
"""

from __future__ import annotations

from typing import Final

import msgspec

CONFIRMED: Final = "confirmed"
CANCELLED: Final = "cancelled"


class Balance(msgspec.Struct, frozen=True):
    """One equation, with the values of both sides."""

    name: str
    text: str
    left: float
    right: float

    @property
    def is_exact(self) -> bool:
        return self.left == self.right


class Ledger:
    """What was placed, how it ended, and what was charged for it."""

    def __init__(self, cents: int, delivered: int = 0) -> None:
        self.placed = 0
        self.delivered = delivered
        self.doubled = 0
        self._cents = cents
        self._open: dict[str, str] = {}
        self._ended: dict[str, int] = {CONFIRMED: 0, CANCELLED: 0}
        # Orders that have ended and whose card was not looked at since: order → card.
        self._unverified: dict[str, tuple[str, str]] = {}
        self._verified = 0
        self._charged_cents = 0
        self._stock: dict[str, int] | None = None

    @property
    def open(self) -> int:
        return len(self._open)

    @property
    def confirmed(self) -> int:
        return self._ended[CONFIRMED]

    @property
    def cancelled(self) -> int:
        return self._ended[CANCELLED]

    @property
    def unverified(self) -> dict[str, str]:
        """The card of each order that ended and is still to be looked at."""
        return {order: card for order, (card, _) in self._unverified.items()}

    def order_placed(self, order: str, card: str) -> None:
        """The hub has acknowledged an order."""
        self.placed += 1
        self._open[order] = card

    def order_ended(self, order: str, status: str) -> None:
        """The customer was told how it ended; a repeated answer changes nothing."""
        card = self._open.pop(order, None)
        if card is not None:
            self._ended[status] += 1
            self._unverified[order] = (card, status)

    def card_shown(self, order: str, charges: int, paid_cents: int) -> None:
        """What the card of an order says about it.

        The money of a cancelled order comes back soon after its end, so until then it is looked at
        again.
        """
        card, status = self._unverified.get(order, ("", ""))
        if not card or (status == CANCELLED and paid_cents):
            return
        del self._unverified[order]
        self.doubled += charges > 1
        if status == CONFIRMED:
            self._verified += 1
            self._charged_cents += paid_cents

    def stock_shown(self, free: int, held: int, sold: int) -> None:
        """What the stock of all goods together says."""
        self._stock = {"free": free, "held": held, "sold": sold}

    def balances(self) -> list[Balance]:
        """Every equation that can be checked now."""
        price = f"{self._cents / 100:.2f}"
        found = [
            Balance(
                "orders",
                "placed = confirmed + cancelled + open",
                self.placed,
                self.confirmed + self.cancelled + self.open,
            ),
            Balance(
                "money",
                f"charged = {self._verified} × {price}, the confirmed ones that were looked at",
                self._charged_cents / 100,
                round(self._verified * self._cents) / 100,
            ),
        ]
        if self._stock is not None:
            goods = sum(self._stock.values())
            found.append(Balance("goods", "free + held + sold = delivered", goods, self.delivered))
        return found
