"""Damaged tokens, key sets and denial lists; see `shards.py` for how many."""

from __future__ import annotations

import pytest

from tests.fuzz.corpus import FOUND_LISTS, FOUND_TOKENS
from tests.fuzz.shards import LISTS, TIMEOUT_S, TOKENS, attack
from tests.fuzz.tokens import Forger, Gate, ListForger, read_list


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("seed", TOKENS.seeds)
def test_a_token_is_refused_or_says_what_was_signed(seed: int) -> None:
    gate = Gate()

    attack(seed, TOKENS.cases, Forger(seed).next, gate.check, FOUND_TOKENS)

    assert gate.accepted > TOKENS.cases // 50
    assert gate.refused > TOKENS.cases // 4


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("seed", LISTS.seeds)
def test_a_damaged_list_is_refused_or_read(seed: int) -> None:
    attack(seed, LISTS.cases, ListForger(seed).next, read_list, FOUND_LISTS)
