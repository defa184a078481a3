"""The load of the chaos runs: who sends what, who reads it how, in which program."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from tests.support.process.lines import Mode
from tests.support.process.plans import ProducerPlan, ReaderPlan, Settle

BUSY = ("orders", "events", "readings", "alerts")
RARE = ("reports", "audits", "letters")
MAILBOXES = ("@(chaos/desk)", "@(chaos/shop)", "@(chaos/courier)", "@(chaos/visitor)")
RARE_MAILBOXES = ("@(chaos/hermit)", "@(chaos/pilgrim)", "@(chaos/nomad)")
WORK_S, REST_S = 0.3, 3.0
PRODUCERS_PER_TOPIC = 4


class Workload(NamedTuple):
    """Programs, each with what runs in it."""

    topics: tuple[str, ...]
    producers: tuple[tuple[ProducerPlan, ...], ...]
    readers: tuple[tuple[ReaderPlan, ...], ...]


def mixed(topic_rate_s: float = 90.0, mailbox_rate_s: float = 60.0) -> Workload:
    """All modes and ways of settling; some turn messages down, some come and go."""
    producers = [
        ProducerPlan(address=f"@(chaos/{topic}-{index})", stream=topic, rate_s=topic_rate_s)
        for topic in BUSY
        for index in range(PRODUCERS_PER_TOPIC)
    ]
    rare = [
        *((f"@(chaos/writer-{topic})", topic, False) for topic in RARE),
        *((f"@(chaos/friend-{index})", name, True) for index, name in enumerate(RARE_MAILBOXES)),
    ]
    producers += [
        ProducerPlan(
            address=address,
            stream=stream,
            is_mailbox=is_mailbox,
            rate_s=topic_rate_s,
            work_s=WORK_S,
            rest_s=REST_S,
        )
        for address, stream, is_mailbox in rare
    ]
    producers += [
        ProducerPlan(
            address=f"@(chaos/asker-{index})",
            stream=mailbox,
            is_mailbox=True,
            rate_s=mailbox_rate_s,
        )
        for index, mailbox in enumerate(MAILBOXES)
    ]
    readers = [
        *_group("orders", "ledger", "exclusive", 1, "up_to"),
        *_group("orders", "workers", "shared", 3, "each", is_confirmed=False, nack_share=0.02),
        *_group("events", "audit", "exclusive", 1, "list", nack_share=0.01),
        *_group("events", "routes", "key-shared", 3, "list", stay_s=1.0),
        *_group("readings", "standby", "failover", 2, "list", stay_s=1.5),
        *_group("readings", "pool", "shared", 2, "list", nack_share=0.01, stay_s=0.7),
        *_group("alerts", "keys", "key-shared", 2, "each", nack_share=0.01),
        *_group("alerts", "tail", "exclusive", 1, "each", is_confirmed=False),
        *(_owner(mailbox) for mailbox in MAILBOXES[:2]),
        _owner(MAILBOXES[2], stay_s=0.6, away_s=0.25),
        *(one for topic in RARE for one in _group(topic, "reader", "exclusive", 1, "list")),
        *(_owner(mailbox, stay_s=0.5, away_s=2.0) for mailbox in RARE_MAILBOXES),
        # Away for so long that the mailbox fills up and the hub has to refuse.
        _owner(MAILBOXES[3], stay_s=1.0, away_s=2.5),
    ]
    return Workload(
        (*BUSY, *RARE), (tuple(producers),), (tuple(readers[::2]), tuple(readers[1::2]))
    )


def peaceful(workload: Workload) -> Workload:
    """The same load, but nobody leaves and nothing is turned down."""
    readers = tuple(
        tuple(replace(one, nack_share=0.0, stay_s=0.0) for one in program)
        for program in workload.readers
    )
    return workload._replace(readers=readers)


def replays(workload: Workload) -> tuple[ReaderPlan, ...]:
    """Everything that the topics hold in the end."""
    return tuple(
        ReaderPlan(consumer=f"replay-{topic}", stream=topic, subscription="replay", mode="replay")
        for topic in workload.topics
    )


def _group(
    topic: str,
    name: str,
    mode: Mode,
    consumers: int,
    settle: Settle,
    *,
    is_confirmed: bool = True,
    nack_share: float = 0.0,
    stay_s: float = 0.0,
) -> list[ReaderPlan]:
    return [
        ReaderPlan(
            consumer=f"{topic}-{name}-{index}",
            stream=topic,
            subscription=name,
            mode=mode,
            settle=settle,
            is_confirmed=is_confirmed,
            nack_share=nack_share,
            # The first one stays, so that a group is never empty for long.
            stay_s=stay_s if index else 0.0,
        )
        for index in range(consumers)
    ]


def _owner(mailbox: str, stay_s: float = 0.0, away_s: float = 0.0) -> ReaderPlan:
    name = mailbox.removeprefix("@(chaos/").removesuffix(")")
    return ReaderPlan(
        consumer=name,
        stream=mailbox,
        subscription=name,
        mode="mailbox",
        stay_s=stay_s,
        away_s=away_s,
    )
