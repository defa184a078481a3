"""Derivations that other programs make as well: only published numbers can say they are right."""

from __future__ import annotations

import pytest

from signalhub import capability

# The exporter of the MLS working group's key-schedule vectors, first epoch of the suites 1 to 3:
# those whose hash is SHA-256.
LABEL = "9ba13d54ecdec7cbefcb47b4268d7b1990fabc6d6e67681e167959389d84e4e4"
CONTEXT = "884f1af892ab002f5be4c5d5081ade9e0e6418c6ea7a9a92e90534f19dcef785"
EXPORTS = [
    (
        "5a097e149f2a375d0b9e1d1f4dc3a9c6c1788df888e5441f41a8791f4dc56cea",
        "dbce4e25e59ab4dfa6f6200f113ed08393cf6e7286d024811141c6a4dd11c0cb",
    ),
    (
        "37b4777fbfa0bb7b83d5a4e52d1d249000564918b96436704595c36b57c1e366",
        "fb21b093a965ca191ddc236dd38791d738d37818d8d3861020151dfdd8ee70b0",
    ),
    (
        "27518b380b39834affecb08780ee9709627859d5f6f37994e8783791004485cb",
        "623c858acd2728c5b860a77ae0cde77fa8aef14e9ac124464cab06bbc3cf3635",
    ),
]
SECRET = bytes(range(32))


@pytest.mark.parametrize(("secret", "exported"), EXPORTS)
def test_the_exporter_is_that_of_mls(secret: str, exported: str) -> None:
    context = bytes.fromhex(CONTEXT)

    assert capability.exporter(bytes.fromhex(secret), LABEL, context, 32).hex() == exported


def test_ids_and_keys_of_inboxes_are_those_everybody_derives() -> None:
    key = capability.inbox_key(SECRET, "general")

    assert capability.inbox_id(SECRET) == "pw1oQgdmuN2WQLXM3CpAZaVIVGvyJRwpcv9QG4XsHfg"
    assert key == capability.exporter(SECRET, "tunnl3d-inbox-key", b"general", 32)
    assert key != capability.inbox_key(SECRET, "other")


def test_labels_and_lengths_of_every_size_make_exports_of_their_own() -> None:
    labels = ["x" * (size + more) for size in (0, 55, 56, 16_375, 16_376) for more in (0, 1)]
    found = {capability.exporter(SECRET, label, b"", 16) for label in labels}
    short, long = (capability.exporter(SECRET, "x", b"", length) for length in (32, 64))

    assert len(found) == len(set(labels))
    assert (len(short), len(long), long[:32] == short) == (32, 64, False)


@pytest.mark.parametrize("length", [0, -1, 255 * 32 + 1])
def test_impossible_lengths_are_refused(length: int) -> None:
    with pytest.raises(ValueError, match="length must be between"):
        capability.exporter(SECRET, "x", b"", length)


@pytest.mark.parametrize("secret", [b"", b"short", bytes(33)])
def test_secrets_of_another_length_are_refused(secret: bytes) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        capability.exporter(secret, "x", b"", 32)
    with pytest.raises(ValueError, match="32 bytes"):
        capability.inbox_id(secret)
