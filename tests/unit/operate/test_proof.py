"""A `proof.json` fits the log it was made of, and no other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from signalhub.cli.app import run
from signalhub.operate.arguments import InvalidArgument
from signalhub.operate.audit import check_proof
from signalhub.server.history.questions import EVERYTHING, ProofQuestion
from signalhub.server.history.reader.pace import Pace
from signalhub.server.history.reader.process import Library
from tests.pipeline.scene import LogScene


@pytest.fixture
def made(tmp_path: Path) -> tuple[LogScene, dict[str, Any]]:
    """A log of several sealed segments, and its proof."""
    scene = LogScene(tmp_path, segment_bytes=4_096)
    scene.publish(200, batch=10)
    scene.seal()
    library = Library(tmp_path, None)
    proof = library.answer(ProofQuestion(hub="a hub", reach=EVERYTHING), Pace())
    library.close()
    return scene, json.loads(proof)


def encoded(proof: dict[str, Any]) -> bytes:
    return json.dumps(proof).encode()


def test_a_proof_fits_its_log(made: tuple[LogScene, dict[str, Any]]) -> None:
    scene, proof = made
    assert len(proof["segments"]) > 3

    found = check_proof(scene.data, encoded(proof))

    assert found.is_good
    assert (found.segments, found.missing) == (len(proof["segments"]), 0)
    scene.publish(100, batch=10)
    scene.seal()
    assert check_proof(scene.data, encoded(proof)).is_good, "a log that has grown"


def test_a_proof_fits_a_log_whose_beginning_was_deleted(
    made: tuple[LogScene, dict[str, Any]],
) -> None:
    scene, proof = made
    scene._log.remove(scene._log.segments[:2])

    found = check_proof(scene.data, encoded(proof))

    assert found.is_good, "the footers of deleted segments are kept"
    assert found.missing == 0


FORGERIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "has another chain": lambda proof: proof["segments"][1].update(chain="00" * 32),
    "does not continue": lambda proof: proof["segments"][2].update(previousChain="00" * 32),
    "has other entries": lambda proof: proof["segments"][1].update(end=7),
}


@pytest.mark.parametrize("fault", FORGERIES)
def test_what_was_changed_is_named(made: tuple[LogScene, dict[str, Any]], fault: str) -> None:
    scene, proof = made
    FORGERIES[fault](proof)

    found = check_proof(scene.data, encoded(proof))

    assert any(fault in one for one in found.faults)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"version": 1}'])
def test_something_else_is_no_proof(made: tuple[LogScene, dict[str, Any]], content: bytes) -> None:
    with pytest.raises(InvalidArgument):
        check_proof(made[0].data, content)


def test_a_proof_of_another_version_is_refused(made: tuple[LogScene, dict[str, Any]]) -> None:
    with pytest.raises(InvalidArgument, match="version 9"):
        check_proof(made[0].data, encoded(made[1] | {"version": 9}))


def test_the_command_says_what_it_found(
    made: tuple[LogScene, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "proof.json"
    path.write_bytes(encoded(made[1]))
    arguments = ["audit", "--check", str(path), "--data", str(made[0].data), "--json"]

    assert run(arguments) == 0
    facts = msgspec.json.decode(capsys.readouterr().out)
    assert facts["good"]
    made[1]["segments"][1]["chain"] = "11" * 32
    path.write_bytes(encoded(made[1]))
    assert run(arguments) == 1
    assert not msgspec.json.decode(capsys.readouterr().out)["good"]
