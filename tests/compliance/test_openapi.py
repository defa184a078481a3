"""The hub and its OpenAPI document say the same, as schemathesis finds out with many requests.

It runs as a process of its own against a hub in another one: valid and invalid requests for every
operation, one after the other and in chains. There are 20 000 in `make soak`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from signalhub.server.rooms.openapi import describe
from signalhub.settings.model import RoomsSettings
from signalhub.testing import FakeClock, run_hub, spawn_hub
from tests.compliance.openapi_cases import COUNTS_VARIABLE, CROWDED_VARIABLE, SECRET_VARIABLE
from tests.support.volume import IS_SOAK, volume

ROOT = Path(__file__).resolve().parents[2]

REQUESTS = volume(1_000, 20_000)
# Of each operation in a round; the edge cases and the chains come on top. A round makes about 1 000
# requests, or 2 000, and there are as many rounds as it takes, each with another seed.
EXAMPLES = volume(40, 140)

MESSAGE_REQUESTS = volume(150, 20_000)
MESSAGE_EXAMPLES = volume(12, 140)
MESSAGES = ("--include-path-regex", "^/api/hub/")
# The coverage phase alone makes more than a thousand requests.
MESSAGE_PHASES = ("--phases", "examples,coverage,fuzzing" if IS_SOAK else "examples,fuzzing")
NOT_MESSAGES = ("--exclude-path-regex", "^/api/hub/")

UNLIMITED = {"rate": 10**9, "append_rate": 10**9, "fetch_rate": 10**9}

# A request that finds things otherwise than its sender thought is no bad request.
CONFIG = """
continue-on-failure = true
checks.positive_data_acceptance.expected-statuses = ["2xx", "304", "404", "409", "412", "429"]
checks.negative_data_rejection.expected-statuses = ["400", "404", "405", "413", "415", "429"]
generation.database = "none"
"""


class Verdict(msgspec.Struct):
    """What schemathesis found, and how often each operation was answered with each status."""

    exit_code: int
    output: str
    counts: Counter[tuple[str, int]]


def by_status(counts: Counter[tuple[str, int]]) -> Counter[int]:
    statuses: Counter[int] = Counter()
    for (_, status), number in counts.items():
        statuses[status] += number
    return statuses


async def examine(
    folder: Path,
    url: str,
    *options: str,
    document: str | None = None,
    is_crowded: bool = False,
    is_secret: bool = False,
) -> Verdict:
    """Let schemathesis compare a hub with a document, by default its own."""
    config, counts = folder / "schemathesis.toml", folder / "counts.json"
    config.write_text(CONFIG)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "--no-color"),
        *("run", document or f"{url}/openapi.json", "--url", url, *options),
        cwd=folder,
        env=os.environ
        | {
            "PYTHONPATH": str(ROOT),
            "SCHEMATHESIS_HOOKS": "tests.compliance.openapi_cases",
            COUNTS_VARIABLE: str(counts),
        }
        | ({CROWDED_VARIABLE: "1"} if is_crowded else {})
        | ({SECRET_VARIABLE: "1"} if is_secret else {}),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    assert process.returncode is not None
    rows = json.loads(counts.read_text())
    return Verdict(
        process.returncode,
        output.decode(errors="replace"),
        Counter({(asked, status): number for asked, status, number in rows}),
    )


def operations() -> list[str]:
    paths = describe(RoomsSettings())["paths"]
    return [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]


@pytest.mark.timeout(120 + REQUESTS // 10)
async def test_the_hub_does_what_its_document_says(tmp_path: Path) -> None:
    counts: Counter[tuple[str, int]] = Counter()
    async with spawn_hub(rooms=UNLIMITED) as hub:
        for seed in itertools.count(1):
            options = ("--max-examples", str(EXAMPLES), "--seed", str(seed), *NOT_MESSAGES)
            verdict = await examine(tmp_path, hub.http_url, *options)
            assert verdict.exit_code == 0, verdict.output
            counts.update(verdict.counts)
            if counts.total() >= REQUESTS:
                break
        log = hub.log()

    statuses = by_status(counts)
    print(f"{counts.total()} requests: {sorted(statuses.items())}")
    assert max(statuses) < 500
    assert {304, 400, 404, 405, 409, 412, 413, 415} <= set(statuses)
    assert set(operations()) <= {asked for asked, status in counts if status < 300}
    assert "could not" not in log


@pytest.mark.timeout(120 + MESSAGE_REQUESTS // 10)
async def test_messages_are_handled_as_the_document_says(tmp_path: Path) -> None:
    counts: Counter[tuple[str, int]] = Counter()
    async with spawn_hub(message_rate=0) as hub:
        for seed in itertools.count(1):
            options = ("--max-examples", str(MESSAGE_EXAMPLES), "--seed", str(seed))
            verdict = await examine(tmp_path, hub.http_url, *options, *MESSAGES, *MESSAGE_PHASES)
            assert verdict.exit_code == 0, verdict.output
            counts.update(verdict.counts)
            if counts.total() >= MESSAGE_REQUESTS:
                break
        log = hub.log()

    statuses = by_status(counts)
    print(f"{counts.total()} requests: {sorted(statuses.items())}")
    assert max(statuses) < 500
    assert {200, 202, 400, 404} <= set(statuses)
    assert "could not" not in log


async def test_limits_answer_as_described_too(tmp_path: Path) -> None:
    # Its time stands still, so that however slow the requests are, they are too many.
    async with run_hub(clock=FakeClock()) as hub:
        verdict = await examine(
            *(tmp_path, hub.http_url),
            *("--max-examples", "150", "--phases", "examples,fuzzing", "--seed", "1"),
            *("--include-operation-id", "readInbox", "--include-operation-id", "appendToInbox"),
            is_crowded=True,
        )

    assert verdict.exit_code == 0, verdict.output
    assert verdict.counts["GET /v1/inbox/messages", 429] > 0, verdict.counts
    assert max(by_status(verdict.counts)) < 500


async def test_other_settings_are_described_as_well(tmp_path: Path) -> None:
    rooms: dict[str, object] = {
        "require_capability": True,
        "timestamps": "exact",
        "ciphertext_bytes_max": 100,
        "blob_bytes_max": 9,
    }

    async with run_hub(rooms=UNLIMITED | rooms) as hub:
        options = ("--phases", "examples,coverage", "--seed", "1", *NOT_MESSAGES)
        verdict = await examine(tmp_path, hub.http_url, *options, is_secret=True)

    assert verdict.exit_code == 0, verdict.output
    assert max(by_status(verdict.counts)) < 500


async def test_a_document_that_lies_is_found_out(tmp_path: Path) -> None:
    document: Any = describe(RoomsSettings())
    fetch = document["paths"]["/v1/inbox/messages"]["get"]
    _, from_seq, limit = fetch["parameters"]
    del fetch["responses"]["400"]
    fetch["responses"]["200"]["headers"]["X-Other"] = {"required": True, "schema": {}}
    document["components"]["schemas"]["Page"]["properties"]["nextSeq"]["type"] = "string"
    from_seq["schema"]["maximum"] = 1_000
    limit["schema"]["minimum"] = 0
    path = tmp_path / "openapi.json"
    path.write_bytes(msgspec.json.encode(document))

    async with run_hub(rooms=UNLIMITED) as hub:
        verdict = await examine(
            *(tmp_path, hub.http_url, "--phases", "coverage", "--seed", "1"),
            *("--include-operation-id", "readInbox"),
            document=str(path),
        )

    assert verdict.exit_code == 1, verdict.output
    for lie in (
        "Undocumented status code",
        "Missing required response headers",
        "Response violates schema",
        "Schema-violating request accepted",
        "Schema-valid request rejected",
    ):
        assert lie in verdict.output, verdict.output


@pytest.mark.parametrize("is_required", [True, False])
def test_the_document_knows_the_settings_of_its_hub(is_required: bool) -> None:
    limits: dict[str, Any] = {"ciphertext_bytes_max": 3, "blob_bytes_max": 7, "rate": 11}
    document = describe(RoomsSettings(require_capability=is_required, **limits))

    put = document["paths"]["/v1/room/quorum"]["put"]["requestBody"]["content"]
    deposit = document["components"]["schemas"]["Deposit"]["properties"]
    assert deposit["ciphertext"]["maxLength"] == 5
    assert put["application/octet-stream"]["schema"]["maxLength"] == 7
    assert "11 messages in 5 s" in document["paths"]["/api/v1/message"]["post"]["description"]
    for path in ("/api/v1/message", "/v1/room/metadata", "/v1/room/proposals"):
        operation = next(iter(document["paths"][path].values()))
        (inbox,) = [one for one in operation["parameters"] if one["name"] == "X-Inbox-ID"]
        assert inbox["required"] is is_required


def test_the_document_of_a_hub_with_authentication_says_who_is_refused() -> None:
    document = describe(RoomsSettings(), is_checked=True)

    every = [one for path in document["paths"].values() for one in path.values()]
    assert all({"401", "403"} <= operation["responses"].keys() for operation in every)
    named = {name for one in document["security"] for name in one}
    assert named == document["components"]["securitySchemes"].keys() == {"token", "capability"}
    assert "security" not in describe(RoomsSettings())
