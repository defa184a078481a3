"""The native part composes copies, and writes settlements, byte for byte as Python does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signalhub.core.sessions.session import Session
from signalhub.core.streams.streams import Held, Topic
from signalhub.core.subscriptions import progress, send
from signalhub.core.subscriptions.consumers import Consumer
from signalhub.core.subscriptions.subscription import Subscription
from signalhub.core.subscriptions.window import Acked, Series
from signalhub.pacing import TokenBucket
from signalhub.wire.entry import (
    DeadLetterOrigin,
    MessageBody,
    RedrivenOrigin,
    ReplayOrigin,
    SettledBody,
    StreamDefinitionBody,
    SubscriptionDefinitionBody,
    encode_body,
)
from signalhub.wire.frames import text_frames

pytest.importorskip("signalhub_native")

NUMBERS = st.integers(0, 2**53)
PLAIN = st.text("ab/@() .~", max_size=20)
ANY = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NAMES = st.one_of(PLAIN, ANY)
RARE = st.one_of(st.none(), st.none(), st.none(), ANY)
TTLS = st.one_of(st.none(), NUMBERS, st.floats(0, 1e9), st.booleans(), st.integers(-5, 5))


@st.composite
def messages(draw: st.DrawFn) -> MessageBody:
    body = MessageBody(
        draw(NAMES),
        draw(st.binary(max_size=36)),
        draw(NAMES),
        draw(NAMES),
        draw(st.binary(max_size=300)),
        draw(st.sampled_from([b"", b"{}", b'{"a":1}'])),
        draw(TTLS),
        draw(st.one_of(st.none(), st.floats(0, 1e12))),
        draw(RARE),
        draw(st.sampled_from([None, None, None, {}, {"h": "1"}])),
        draw(st.one_of(st.none(), NUMBERS)),
        only_for=draw(RARE),
    )
    match draw(st.integers(0, 20)):
        case 0:
            body.dead = DeadLetterOrigin("t", "s", "1.1", 1, 2, "why", 3, 4, ["c"])
        case 1:
            body.replay = ReplayOrigin("j", 0, 1, 2, "m", 1, 9)
        case 2:
            body.redriven = RedrivenOrigin("m", "1.1", 7)
        case _:
            pass
    return body


def subscription(topic: str, name: str) -> Subscription:
    definition = SubscriptionDefinitionBody(
        name, "exclusive", 9, False, 1_000, 3, 10, 100, None, False
    )
    return Subscription(Topic(topic, 7, 3, StreamDefinitionBody(True)), definition, 500, 0)


@given(
    st.lists(st.tuples(messages(), NUMBERS), min_size=1, max_size=6),
    st.integers(1, 2**53),
    NAMES,
    NAMES,
    NAMES,
    NUMBERS,
    st.integers(1, 99),
)
def test_a_series_is_composed_like_its_messages_one_by_one(
    given_messages: list[tuple[MessageBody, int]],
    first: int,
    topic: str,
    name: str,
    address: str,
    stamp_ms: int,
    generation: int,
) -> None:
    one = subscription(topic, name)
    one.position.generation = generation
    session = Session("s", None, TokenBucket(0, 1, 0), 0)
    consumer = Consumer("id", "c", session, address, one, window=9, bytes_max=9, auto_ack=False)
    held = [
        Held(seq, seq + 5, at_ms, message, len(message.data))
        for seq, (message, at_ms) in enumerate(given_messages, first)
    ]

    frames = send.frames_of(one, Series(first, held, consumer, 0, 1_000), stamp_ms)

    assert list(text_frames(frames)) == [
        send.frame_of(one, consumer, each, 1, stamp_ms) for each in held
    ]


ACKED = st.builds(Acked, NUMBERS, st.lists(NUMBERS, min_size=1, max_size=20), NUMBERS, ANY)


@given(NAMES, st.integers(1, 2**40), st.lists(ACKED, min_size=1, max_size=8))
def test_settlements_are_written_like_one_by_one(
    name: str, generation: int, acked: list[Acked]
) -> None:
    every = [one for some in acked for one in some.settlements()]

    assert progress.body_of(name, generation, list(acked)) == encode_body(
        SettledBody(name, generation, every)
    )


def test_many_settlements_and_long_names_have_longer_heads() -> None:
    many = Acked(1, list(range(70_000)), 2, "c" * 300)

    body = progress.body_of("s" * 300, 1, [many])

    assert body == encode_body(SettledBody("s" * 300, 1, many.settlements()))


def test_the_native_part_composes_what_is_usual() -> None:
    native = pytest.importorskip("signalhub_native")
    one = subscription("t", "s")
    usual = MessageBody("m", b"id", "@(a/b)", "news", b"1", b"", 5, 1e12, deliver_at=7)
    rare = MessageBody("m", b"id", "@(a/b)", "news", b"1", key="k")
    held = [Held(seq, seq, 0, message, 1) for seq, message in enumerate([usual, usual, rare])]

    parts = (b'"@(c)"', one.stream.copy_head, one.copy_delivery, b"p.1.", 0)

    assert native.first_copies(held, 0, 1, *parts)[1] == 2
    assert native.first_copies(held, 1, 2, *parts)[1] == 1
    assert native.first_copies(held, 2, 3, *parts) == (b"", 0)
