"""Work that has to wait for something, outside of actors."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from signalhub.actors.api.offload import find, run_offloaded
from signalhub.testing.local_actors import LocalActors
from tests.support.actors.offload import Fetcher, Unhurried, fetch, ran

MODULE = fetch.__module__


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


def got(local: LocalActors) -> Any:
    return local.state("fetcher/1").get("got")


def test_an_async_function_is_run_and_its_value_reaches_the_continuation() -> None:
    local = LocalActors(Fetcher)
    local.call("fetcher/1", "fetch", 1, {"a": (2,)})

    assert got(local) == ["fetched", 1, {"a": (2,)}]
    assert ran == [[1, {"a": (2,)}]]
    assert local.call("fetcher/1", "waiting") == []


def test_what_it_raises_reaches_the_continuation_for_errors() -> None:
    local = LocalActors(Fetcher)
    local.call("fetcher/1", "fail")

    assert got(local) == "<RemoteError LookupError: 'nothing there'>"


def test_a_value_that_cannot_be_stored_is_an_error() -> None:
    local = LocalActors(Fetcher)
    local.call("fetcher/1", "unsendable")

    assert "object" in got(local)


def test_nothing_is_run_for_a_handler_that_raised() -> None:
    local = LocalActors(Fetcher)
    local.begin("fetcher/1", "fetch_and_raise")
    local.run()

    assert ran == []


def test_work_is_a_pending_call_without_a_target() -> None:
    local = Unhurried(Fetcher)
    local.call("fetcher/1", "fetch")

    method = f"{MODULE}:fetch"
    assert local.call("fetcher/1", "waiting") == [["", method, None]]


def test_work_that_was_cut_short_by_a_crash_is_run_again(tmp_path: Any) -> None:
    local = Unhurried(Fetcher, path=tmp_path / "a.db")
    local.call("fetcher/1", "fetch", 1)
    local.restart()
    local.run()

    first, second = local.begun
    assert first == second
    local.end(second)
    assert got(local) == "ended"


def test_work_whose_outcome_was_stored_is_not_run_again(tmp_path: Any) -> None:
    local = LocalActors(Fetcher, path=tmp_path / "a.db")
    local.call("fetcher/1", "fetch", 1)
    local.restart()
    local.run()

    assert ran == [[1]]


def test_an_outcome_that_comes_twice_is_taken_once() -> None:
    local = Unhurried(Fetcher)
    local.call("fetcher/1", "fetch", 1)
    (work,) = local.begun
    local.end(work)
    local.end(work)

    assert local.kernel.counters.continuations == 1


def test_work_may_time_out_and_is_not_heard_of_any_more() -> None:
    local = Unhurried(Fetcher)
    local.call("fetcher/1", "fetch_for", 5)
    local.advance(5)
    timed_out = got(local)
    (work,) = local.begun
    local.end(work)

    assert timed_out.startswith("CallTimeout(")
    assert got(local) == timed_out


def test_work_has_no_timeout_unless_it_is_given_one() -> None:
    local = Unhurried(Fetcher)
    local.call("fetcher/1", "fetch")
    local.advance(10 * 86_400)

    assert got(local) is None


def test_work_of_the_same_handler_can_be_withdrawn() -> None:
    local = LocalActors(Fetcher)

    assert local.call("fetcher/1", "fetch_and_cancel") == "withdrawn"
    assert ran == []
    assert local.kernel.store.execute("SELECT count(*) FROM offloads").get == 0


def test_work_under_way_can_only_be_suppressed() -> None:
    local = Unhurried(Fetcher)
    call_id = local.call("fetcher/1", "fetch")

    assert local.call("fetcher/1", "cancel", call_id) == "suppressed"
    local.end(local.begun[0])
    assert got(local) is None


def test_cancelled_work_is_not_run_again_after_a_crash(tmp_path: Any) -> None:
    local = Unhurried(Fetcher, path=tmp_path / "a.db")
    call_id = local.call("fetcher/1", "fetch")
    local.call("fetcher/1", "cancel", call_id)
    local.restart()
    local.run()

    assert len(local.begun) == 1


@pytest.mark.parametrize(
    "name", ["no_such_module:f", f"{MODULE}:absent", f"{MODULE}:ran", "nothing", ":x"]
)
def test_a_function_that_is_gone_is_the_outcome_of_the_work(name: str) -> None:
    with pytest.raises(LookupError, match="no longer"):
        find(name)
    body = asyncio.run(run_offloaded(name, b"[]"))

    assert b"LookupError" in body
