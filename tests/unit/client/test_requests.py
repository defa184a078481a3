"""What Python adds to answers: they are counted, listed and iterated."""

from __future__ import annotations

from signalhub.client import answers
from signalhub.client.answers import answer_of
from tests.support.memory.client import BOB


def test_answers_are_counted_listed_and_iterated() -> None:
    found = answers.Found(actors=(answers.Actor(address=BOB),))
    topics = answers.TopicPage(topics=(answers.Topic(name="orders"),))
    subscriptions = answers.SubscriptionPage(subscriptions=(answers.SubscriptionInfo(),))

    assert (len(found), list(found), found[0].address) == (1, [found[0]], BOB)
    assert (len(topics), [topic.name for topic in topics]) == (1, ["orders"])
    assert (len(subscriptions), list(subscriptions)) == (1, [answers.SubscriptionInfo()])
    assert answers.Receipt(message_id="m").is_delivered
    assert not answers.Receipt(message_id="m", status="queued").is_delivered
    assert answer_of({"count": 4, "skipped": 1}, answers.Count).skipped == 1
