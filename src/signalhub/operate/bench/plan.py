"""What a load consists of, and what it may at most be."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, get_args

import msgspec

from signalhub.operate.arguments import InvalidArgument

LoadKind = Literal["tell", "ask", "rtt", "fanout", "durable", "consume", "connect", "room"]
LOAD_KINDS: Final = get_args(LoadKind)

SECONDS: Final = 10.0
SECONDS_MAX: Final = 600.0
RATE_MAX: Final = 100_000.0
CLIENTS_MAX: Final = 5_000
BYTES: Final = 128
BYTES_MAX: Final = 32_768
MESSAGES_MAX: Final = 2_000_000
COPIES_MAX: Final = 20_000_000
PROCESSES_MAX: Final = 16


class LoadShape(NamedTuple):
    """What is usual for one kind of load."""

    rate: float
    clients: int
    clients_min: int = 1
    is_copied: bool = False  # Every client gets every message.


SHAPES: Final[dict[LoadKind, LoadShape]] = {
    "tell": LoadShape(1_000.0, 16, 2),
    "ask": LoadShape(1_000.0, 16, 2),
    "rtt": LoadShape(500.0, 16, 2),
    "fanout": LoadShape(10.0, 100, 2, is_copied=True),
    "durable": LoadShape(1_000.0, 16),
    "consume": LoadShape(1_000.0, 16),
    "connect": LoadShape(50.0, 50),
    "room": LoadShape(50.0, 10, 2, is_copied=True),
}


class LoadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One load; `run` makes its addresses and topics its own."""

    kind: LoadKind
    rate: float
    clients: int
    seconds: float
    size: int
    processes: int
    run: str

    @property
    def messages(self) -> int:
        """How many messages are due in all."""
        return max(1, round(self.rate * self.seconds))

    @property
    def topic(self) -> str:
        return f"bench/{self.run}"

    def address(self, client: int) -> str:
        return f"@(bench/{self.run}-{client})"

    def clients_of(self, process: int) -> range:
        """The numbers of the clients of one process."""
        first = self.clients * process // self.processes
        return range(first, self.clients * (process + 1) // self.processes)


def planned(
    kind: LoadKind,
    run: str,
    *,
    rate: float | None = None,
    clients: int | None = None,
    seconds: float = SECONDS,
    size: int = BYTES,
    processes: int = 1,
) -> LoadPlan:
    """Return a load with what is usual for its kind; raises `InvalidArgument` if it is too much."""
    shape = SHAPES[kind]
    plan = LoadPlan(
        kind=kind,
        rate=shape.rate if rate is None else rate,
        clients=shape.clients if clients is None else clients,
        seconds=seconds,
        size=size,
        processes=1,
        run=run,
    )
    _check("a rate", plan.rate, 0.1, RATE_MAX, "--rate")
    _check("a number of clients", plan.clients, shape.clients_min, CLIENTS_MAX, "--clients")
    _check("a duration", plan.seconds, 0.1, SECONDS_MAX, "--for")
    _check("a size", plan.size, 0, BYTES_MAX, "--size")
    _check("a number of messages", plan.messages, 1, MESSAGES_MAX, "--rate or --for")
    if shape.is_copied:
        copies = plan.messages * plan.clients
        _check("a number of copies", copies, 1, COPIES_MAX, "--rate, --for or --clients")
    most = min(processes, PROCESSES_MAX, plan.clients // shape.clients_min)
    return msgspec.structs.replace(plan, processes=max(1, most))


def _check(what: str, value: float, least: float, most: float, options: str) -> None:
    if not least <= value <= most:
        raise InvalidArgument(
            f"{what} of {value:g} is outside {least:g} to {most:g}", f"choose another {options}"
        )
