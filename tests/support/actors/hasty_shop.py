"""The example's orders, for customers without patience."""

from __future__ import annotations

from typing import ClassVar

from examples import shop


class Order(shop.Order):
    """Waits for banks and customers as long as a test does."""

    kind = "order"
    payment_s: ClassVar[float] = 1.5
    unpaid_s: ClassVar[float] = 0.5
