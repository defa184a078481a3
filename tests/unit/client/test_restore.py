"""Options of a consumer that the hub did not take."""

from __future__ import annotations

import pytest

from signalhub.client.protocol.effects import Warned
from tests.support.memory.client import Scene

BILLING = {"topic": "orders", "subscription": "billing"}


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.connect()
    return scene


def test_options_that_were_not_taken_are_a_warning_and_the_client_settles_accordingly(
    scene: Scene,
) -> None:
    seat = scene.consume()
    seat.terms["autoAck"] = True
    assert seat.is_auto_acked

    seat.taken({"kept": ["autoAck", "maxDeliveries"]})

    assert not seat.is_auto_acked
    (warned,) = [one for one in seat.taken({"kept": ["autoAck"]}) if isinstance(one, Warned)]
    assert warned.facts == BILLING | {"options": ["autoAck"]}
    assert seat.taken({}) == []
    assert seat.is_auto_acked
