"""The functions that cases of kind `function` call, by name; bytes are hexadecimal there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from signalhub import capability
from signalhub.client.sealing import OVERHEAD_BYTES, Sealing


def exporter(secret: str, label: str, context: str, length: int) -> str:
    found = capability.exporter(bytes.fromhex(secret), label, bytes.fromhex(context), length)
    return found.hex()


def inbox_id(key: str) -> str:
    return capability.inbox_id(bytes.fromhex(key))


def inbox_key(secret: str, room: str) -> str:
    return capability.inbox_key(bytes.fromhex(secret), room).hex()


def unseal(key: str, room: str, messageId: str, sealed: str, version: int = 2) -> str:
    assert version in (1, 2)
    return Sealing(bytes.fromhex(key), room).open(messageId, bytes.fromhex(sealed)).hex()


def check_seal(args: Mapping[str, str], result: str) -> None:
    """The client chooses its own nonces: what is expected opens, and so does what it seals."""
    sealing = Sealing(bytes.fromhex(args["key"]), args["room"])
    plaintext, name = bytes.fromhex(args["plaintext"]), args["messageId"]
    assert result[2:26] == args["nonce"]
    assert sealing.open(name, bytes.fromhex(result)) == plaintext
    sealed = sealing.seal(name, plaintext)
    assert sealed[:1] == b"\x02"
    assert len(sealed) == len(plaintext) + OVERHEAD_BYTES
    assert sealing.open(name, sealed) == plaintext
    assert sealing.seal(name, plaintext) != sealed


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "exporter": exporter,
    "inboxId": inbox_id,
    "inboxKey": inbox_key,
    "unseal": unseal,
}


def check_function(case: Mapping[str, Any]) -> None:
    """Check one case."""
    if case["function"] == "seal":
        check_seal(case["args"], case["result"])
        return
    function = FUNCTIONS[case["function"]]
    if case.get("error"):
        try:
            found = function(**case["args"])
        except ValueError:
            return
        raise AssertionError(f"it returned {found!r}")
    found = function(**case["args"])
    assert found == case["result"], f"{found!r}"
