"""Actors for tests of the command line; hosts run them as `tests.support.actors.shop:Order`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar

from signalhub.actors import Actor, CallError, Token, cont, op, ref, register_payload, remote


@register_payload("cli_shop.Parcel")
@dataclass
class Parcel:
    """Something only this module can read."""

    weight: int


class Stock(Actor):
    @remote
    def reserve(self, count: int) -> int:
        left: int = self.state.get("left", 10) - count
        if left < 0:
            raise ValueError("none left")
        self.state.put("left", left)
        return left


class Order(Actor):
    config_overrides: ClassVar = {"handler_max_attempts": 1}

    @remote
    def checkout(self, sku: str) -> Token:
        token = self.defer()
        self.call(ref("stock", sku), op(Stock.reserve, 1), then=partial(self.on_reserved, token.id))
        return token

    def on_reserved(self, token: str, outcome: Any) -> None:
        if isinstance(outcome, CallError):
            self.reject(Token(token), outcome)
        else:
            self.resolve(Token(token), outcome)

    @remote
    def echo(self, *values: Any) -> list[Any]:
        return list(values)

    @remote
    def odd(self, what: str) -> Any:
        return {
            "when": datetime(2026, 1, 31, 12, tzinfo=UTC),
            "keys": {(1, 2): "three"},
            "bell": "a\a\u202eb",
            "parcel": Parcel(3),
        }[what]

    @remote
    def never(self) -> Token:
        return self.defer()

    @remote
    def wait_for(self, clerk: str) -> str:
        """A call that stays open, to an actor of another kind."""
        return self.call(ref("clerk", clerk), "never", then=self.on_waited, timeout=3600)

    def on_waited(self, outcome: Any) -> None:
        self.state.put("waited", repr(outcome))

    @remote
    def stumble(self, sku: str) -> str:
        """A call whose continuation fails, until it is repaired."""
        return self.call(ref("stock", sku), op(Stock.reserve, 1), then=self.on_stumbled)

    def on_stumbled(self, outcome: int) -> None:
        if not self.state.get("is_repaired", False):
            raise KeyError("stumbled")
        self.state.put("stumbled", outcome)

    @remote
    def repair(self) -> None:
        self.state.put("is_repaired", True)

    @remote
    def remind(self, seconds: float) -> None:
        self.alarms.schedule(seconds, cont(self.reminded, "tea"), max_attempts=1, id="tea")
        self.alarms.schedule("0 9 * * MON", cont(self.reminded, "coffee"), id="weekly")

    def reminded(self, what: str) -> None:
        if not self.state.get("is_repaired", False):
            raise RuntimeError(f"no {what}")


class Clerk(Actor):
    @remote
    def never(self) -> Token:
        return self.defer()


class Twin(Actor):
    """Of the same kind as another class here."""

    kind = "order"


helper = 3
