"""Work that has to wait for something, outside of actors."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from signalhub.actors.api.offload import find
from signalhub.actors.host.offload import run_offloaded
from tests.support.actors.offload import Fetcher, Unhurried, fetch, ran
from tests.support.actors.scripted import QUICK, Stage

MODULE = fetch.__module__


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


@pytest.fixture
def slow(tmp_path: Path) -> Unhurried:
    """A host in which work ends when the test says so."""
    return Unhurried(Fetcher, path=tmp_path / "a.db", config=QUICK)


def got(local: Stage) -> Any:
    return local.state("fetcher/1").get("got")


def cancel(local: Stage, call_id: str) -> Any:
    return local.do("fetcher/1", lambda self: self.cancel_call(call_id).value)


def test_an_async_function_is_run_once_and_its_value_is_the_outcome(tmp_path: Path) -> None:
    local = Stage(Fetcher, path=tmp_path / "a.db", config=QUICK)
    local.call("fetcher/1", "fetch", 1, {"a": (2,)})
    local.restart()
    local.run()

    assert got(local) == ["fetched", 1, {"a": (2,)}]
    assert ran == [[1, {"a": (2,)}]]
    assert local.count("pending") == 0


def test_what_it_raises_and_what_cannot_be_stored_are_errors() -> None:
    local = Stage(Fetcher)
    local.call("fetcher/1", "fail")
    assert got(local) == "LookupError: nothing there"
    local.call("fetcher/1", "unsendable")
    assert "object" in got(local)
    local.call("fetcher/1", "give_up")
    assert got(local) == "CancelledError: "


async def test_work_that_is_cancelled_with_its_host_has_no_outcome() -> None:
    work = asyncio.ensure_future(run_offloaded("asyncio:sleep", b"[60]"))
    await asyncio.sleep(0)
    work.cancel()

    with pytest.raises(asyncio.CancelledError):
        await work


def test_nothing_is_run_for_a_handler_that_raised_or_withdrew_it() -> None:
    def fetch_and_raise(self: Fetcher) -> None:
        self.offload(fetch)
        raise ValueError("no")

    def fetch_and_cancel(self: Fetcher) -> str:
        return self.cancel_call(self.offload(fetch, then=self.note)).value

    local = Stage(Fetcher)
    local.start("fetcher/1", fetch_and_raise)
    assert local.do("fetcher/1", fetch_and_cancel) == "withdrawn"

    assert (ran, local.notes("fetcher/1")) == ([], [])
    assert local.count("offloads") == 0


def test_work_is_a_pending_call_without_a_target_and_without_a_timeout(slow: Unhurried) -> None:
    def waiting(self: Fetcher) -> list[Any]:
        return [[one.target, one.method, one.deadline_ms] for one in self.pending_calls()]

    slow.call("fetcher/1", "fetch")

    assert slow.do("fetcher/1", waiting) == [["", f"{MODULE}:fetch", None]]
    slow.advance(10 * 86_400)
    assert got(slow) is None


def test_work_that_was_cut_short_by_a_crash_is_run_again_and_heard_of_once(slow: Unhurried) -> None:
    slow.call("fetcher/1", "fetch", 1)
    slow.restart()
    slow.run()
    first, second = slow.begun
    assert first == second
    slow.end(second)
    slow.end(second)

    assert got(slow) == "ended"
    assert slow.kernel.counters.continuations == 1


def test_work_may_time_out_and_is_not_heard_of_any_more(slow: Unhurried) -> None:
    slow.call("fetcher/1", "fetch_for", 5)
    slow.advance(5)
    assert got(slow) == ["timeout", "unknown"]
    slow.end(slow.begun[0])

    assert got(slow) == ["timeout", "unknown"]


def test_work_under_way_can_only_be_suppressed_and_is_not_run_again(slow: Unhurried) -> None:
    call_id = slow.call("fetcher/1", "fetch")
    assert cancel(slow, call_id) == "suppressed"
    slow.end(slow.begun[0])
    assert got(slow) is None
    slow.restart()
    slow.run()

    assert len(slow.begun) == 1


@pytest.mark.parametrize(
    "name", ["no_such_module:f", f"{MODULE}:absent", f"{MODULE}:ran", "nothing", ":x"]
)
def test_a_function_that_is_gone_is_the_outcome_of_the_work(name: str) -> None:
    with pytest.raises(LookupError, match="no longer"):
        find(name)

    assert b"LookupError" in asyncio.run(run_offloaded(name, b"[]"))
