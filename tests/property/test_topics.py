"""The subscription index agrees with a list of who asked for what, whatever happens."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from signalhub.core.limits.quotas import Quotas, Resource
from signalhub.core.messages.audience import (
    _AUDIENCES_KEPT_MAX,
    _CHANGES_KEPT_MAX,
    _IDS_KEPT_MAX,
    NODES_MAX,
    Topics,
)
from signalhub.core.sessions.session import Session
from signalhub.counters import Tally
from signalhub.pacing import TokenBucket
from signalhub.settings.model import Settings
from signalhub.wire import names
from signalhub.wire.names import WILDCARD_LEVELS_MAX

SESSIONS = 3
sessions = st.integers(0, SESSIONS - 1)
addresses = st.sampled_from(["@(a/1)", "@(a/2)"])
levels = st.sampled_from(["a", "b", ""])
topics = st.lists(levels, min_size=1, max_size=3).map("/".join).filter(bool)
wildcards = st.builds(
    lambda given, last: "/".join([*given, *last]),
    st.lists(st.one_of(levels, st.just("+")), max_size=2),
    st.sampled_from([["#"], ["+"], ["a"]]),
)


def make_topics(tally: Tally | None = None) -> Topics:
    return Topics(Quotas(Settings()), tally or Tally())


def make_session(number: int) -> Session:
    return Session(f"session-{number}", None, TokenBucket(0, 1, 0), 0)


class TopicsModel(RuleBasedStateMachine):
    """An audience is everybody with a fitting subscription, each address once, at every moment."""

    def __init__(self) -> None:
        super().__init__()
        self.quotas = Quotas(Settings())
        self.topics = Topics(self.quotas, Tally())
        self.sessions = [make_session(number) for number in range(SESSIONS)]
        self.model: dict[tuple[int, str, str], tuple[str, ...]] = {}
        self.asked: set[str] = set()
        self.issued = 0

    @rule(session=sessions, address=addresses, topic=st.one_of(topics, wildcards))
    def subscribe(self, session: int, address: str, topic: str) -> None:
        self.issued += 1
        subscription_id = f"sub-{self.issued}"
        self.topics.subscribe(self.sessions[session], address, topic, subscription_id)
        issued = (*self.model.get((session, address, topic), ()), subscription_id)
        self.model[session, address, topic] = issued[-_IDS_KEPT_MAX:]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def unsubscribe_held(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(sorted(self.model)))
        session, address, topic = held
        assert self.topics.unsubscribe(self.sessions[session], address, topic) is True
        del self.model[held]

    @rule(session=sessions, address=addresses, topic=st.one_of(topics, wildcards))
    def unsubscribe_any(self, session: int, address: str, topic: str) -> None:
        was_held = self.model.pop((session, address, topic), None) is not None
        assert self.topics.unsubscribe(self.sessions[session], address, topic) is was_held

    @rule(session=sessions, address=st.one_of(st.none(), addresses))
    def leave(self, session: int, address: str | None) -> None:
        self.topics.leave(self.sessions[session], address)
        self.model = {
            held: issued
            for held, issued in self.model.items()
            if held[0] != session or (address is not None and held[1] != address)
        }

    @rule(topic=topics)
    def publish(self, topic: str) -> None:
        self.asked.add(topic)
        assert self.topics.audience(topic) is self.topics.audience(topic)

    @invariant()
    def audiences_are_right_also_those_asked_for_before(self) -> None:
        for topic in self.asked:
            recipients = self.topics.audience(topic).recipients
            heard = [(self.sessions.index(one.session), one.address) for one in recipients]
            expected = {
                (session, address)
                for session, address, wanted in self.model
                if names.topic_matches(wanted, topic)
            }
            assert len(heard) == len(set(heard))
            assert set(heard) == expected

    @invariant()
    def sessions_know_their_subscriptions_and_the_ids_issued_for_them(self) -> None:
        kept = {
            (number, address, topic): issued
            for number, session in enumerate(self.sessions)
            for address, subscriber in (session.subscriptions or {}).items()
            for topic, issued in subscriber.topics.items()
        }
        assert kept == self.model

    @invariant()
    def nothing_is_kept_for_nobody(self) -> None:
        assert all(self.topics._exact.values())
        assert self.quotas.total(Resource.PLAIN_SUBSCRIPTIONS) == len(self.model)
        if not any(names.has_wildcard(topic) for _, _, topic in self.model):
            assert not self.topics._wildcards.below
        for session in self.sessions:
            assert all(one.topics for one in (session.subscriptions or {}).values())


TopicsTest = TopicsModel.TestCase
TopicsTest.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)


def test_kept_audiences_are_bounded_and_still_right() -> None:
    tree = make_topics()
    session = make_session(0)
    tree.subscribe(session, "@(a/1)", "t/+", "sub")

    for number in range(_AUDIENCES_KEPT_MAX + 10):
        assert len(tree.audience(f"t/{number}").recipients) == 1

    assert len(tree._audiences) <= _AUDIENCES_KEPT_MAX
    tree.leave(session)
    assert tree.audience("t/0").recipients == []


def test_a_deep_topic_is_heard_like_any_other() -> None:
    tree = make_topics()
    session = make_session(0)
    deepest = "/".join("a" * 128)
    for number, wildcard in enumerate([deepest, "#", "+/" * 127 + "+", "a/" * 127 + "#", "a/#"]):
        tree.subscribe(session, f"@(a/{number})", wildcard, "sub")

    assert len(tree.audience(deepest).recipients) == 5


def test_hostile_wildcards_cost_a_publish_a_bounded_search_and_nobody_else_a_message() -> None:
    tally = Tally()
    tree = make_topics(tally)
    hostile, bystander = make_session(0), make_session(1)
    for number in range(2**WILDCARD_LEVELS_MAX // 16):
        bits = f"{number * 16:0{WILDCARD_LEVELS_MAX}b}"
        tree.subscribe(hostile, "@(a/1)", "/".join("a+"[int(bit)] for bit in bits) + "x", "sub")
    for levels in range(1, 12):
        tree.subscribe(bystander, f"@(b/{levels})", "/".join("+" * levels) + "/#", "sub")

    recipients = tree.audience("/".join("a" * WILDCARD_LEVELS_MAX)).recipients

    assert {one.address for one in recipients} >= {f"@(b/{levels})" for levels in range(1, 11)}
    assert tally.audiences_cut == 1
    assert NODES_MAX == 2**12 - 1


def test_changed_wildcards_leave_the_audiences_of_other_topics_alone() -> None:
    tree = make_topics()
    session = make_session(0)
    tree.subscribe(session, "@(a/1)", "prices/+", "sub")
    audience = tree.audience("prices/eur")

    for number in range(_CHANGES_KEPT_MAX):
        tree.subscribe(session, "@(a/2)", f"other/{number}/#", "sub")
    assert tree.audience("prices/eur") is audience

    tree.subscribe(session, "@(a/2)", "+/eur", "sub")
    assert len(tree.audience("prices/eur").recipients) == 2


def test_an_audience_that_missed_many_changes_is_right_again() -> None:
    tree = make_topics()
    session = make_session(0)
    assert tree.audience("prices/eur").recipients == []

    tree.subscribe(session, "@(a/1)", "prices/#", "sub")
    for number in range(_CHANGES_KEPT_MAX + 1):
        tree.subscribe(session, "@(a/2)", f"other/{number}/#", "sub")

    assert [one.address for one in tree.audience("prices/eur").recipients] == ["@(a/1)"]
