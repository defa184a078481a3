"""Upgrade requests through the native part and through Python; see `shards.py` for how many."""

from __future__ import annotations

import pytest

from signalhub import native
from tests.fuzz.shards import TIMEOUT_S, UPGRADES, attack
from tests.fuzz.upgrades import CLIENTS, UpgradeAsker

pytestmark = pytest.mark.skipif(not native.IS_ON, reason="needs the native part")


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("seed", UPGRADES.seeds)
def test_an_upgrade_request_is_taken_only_as_python_reads_it(seed: int) -> None:
    asker = UpgradeAsker(seed)

    attack(seed, UPGRADES.cases, asker.next, asker.compare)

    assert asker.taken > UPGRADES.cases // 10


@pytest.mark.parametrize("client", CLIENTS)
def test_what_clients_send_is_taken(client: str) -> None:
    from signalhub_native import upgrade

    data = "\r\n".join(["GET /ws HTTP/1.1", *CLIENTS[client], "", ""]).encode()

    assert upgrade(data) is not None
    # In two pieces it is for Python.
    assert upgrade(data[:-1]) is None
    assert upgrade(data + b"\x81\x80abcd") is None
