"""Damaged messages; a shard prints its seed, and a failure the frame. See `shards.py`."""

from __future__ import annotations

import pytest
from jwt import PyJWT

from signalhub.auth.tokens import Authenticator
from signalhub.settings.model import AuthSettings, Settings
from tests.fuzz.mutations import Mutator
from tests.fuzz.shards import ENVELOPES, TIMEOUT_S
from tests.fuzz.target import Target

LOOK_EVERY = 500

SECRET = "a shared secret that is long enough for anybody"
AUTH = AuthSettings(enabled=True, secret=SECRET)
CLAIMS = {
    "iss": "signal-hub",
    "sub": "somebody",
    "actorId": "fuzz/anybody",
    "iat": 1_759_999_000,
    "exp": 1_760_080_000,
    "permissions": {
        "send": ["*"],
        "broadcast": ["*"],
        "publish": ["*"],
        "subscribe": ["*"],
        "register": ["*"],
    },
}


def make_target(seed: int) -> Target:
    """Every fourth hub asks for tokens."""
    settings = Settings(message_rate=0.0, message_bytes_max=20_000)
    if seed % 4:
        return Target(settings, None, "")
    return Target(settings, Authenticator(AUTH), PyJWT().encode(CLAIMS, SECRET, "HS256"))


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("seed", ENVELOPES.seeds)
def test_damaged_messages_harm_nobody_but_their_sender(seed: int) -> None:
    print(f"seed {seed}")
    mutator, target = Mutator(seed), make_target(seed)

    while target.frames < ENVELOPES.cases:
        if target.fire(mutator.next()) and target.frames % LOOK_EVERY == 0:
            target.check_bystander()

    target.check_bystander()
    target.check_nothing_is_left()


def test_the_same_seed_gives_the_same_frames() -> None:
    first, second, other = Mutator(1), Mutator(1), Mutator(2)

    frames = [first.next() for _ in range(500)]

    assert frames == [second.next() for _ in range(500)]
    assert frames != [other.next() for _ in range(500)]


def test_the_damage_is_of_every_kind() -> None:
    """Rubbish alone would only test the parser."""
    mutator, target = Mutator(3), make_target(3)
    while target.frames < 20_000:
        target.fire(mutator.next())
    tally = target.hub.tally

    assert tally.errors["malformed_message"] > 200
    assert tally.errors["internal_error"] > 200
    assert tally.errors["unknown_actor"] > 10
    assert tally.duplicates > 10
    assert tally.registrations > 200
    assert tally.published > 50
    assert tally.broadcasts > 50
    assert tally.ask_latency.count > 50
    assert tally.appended > 500
    assert tally.errors["unknown_topic"] > 50
    assert tally.errors["not_a_consumer"] > 50
