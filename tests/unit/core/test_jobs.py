"""Jobs that operators list: running, done, failed, and interrupted ones that nobody resumes."""

from __future__ import annotations

from typing import Any

import pytest

from signalhub.core.jobs import Jobs
from signalhub.wire.entry import OperatedBody
from tests.support.memory.shell import MemoryShell, Message, Peer
from tests.support.memory.tokens import admitted, guarded
from tests.support.memory.topics import TOPIC, code_of, create, publish

UNTIL = {"epoch": 1, "offset": 1_000}
DRIVER = "@(ops/driver)"


def jobs(peer: Peer, **payload: Any) -> list[Message]:
    reply = peer.ask("hub:list_jobs", payload)
    assert reply["type"] == "hub:job_list", reply
    rows: list[Message] = reply["payload"]["jobs"]
    return rows


def states(peer: Peer) -> dict[str, str]:
    return {one["job"]: one["state"] for one in jobs(peer)}


def republish(peer: Peer, job: str, *offsets: int, ended: bool = False) -> None:
    copies = [
        {"epoch": 1, "offset": offset, "id": f"m-{offset}", "type": "news"} for offset in offsets
    ]
    payload = {"job": job, "until": UNTIL, "to": {"topic": TOPIC}, "messages": copies}
    reply = peer.ask("hub:republish", payload | ({"ended": True} if ended else {}))
    assert reply["type"] == "hub:republished", reply


def stage(shell: MemoryShell) -> tuple[Peer, Peer]:
    """Somebody who drives jobs, and somebody who looks at them."""
    driver, viewer = shell.connect(DRIVER), shell.connect("@(ops/viewer)")
    create(driver)
    return driver, viewer


def test_a_replay_is_running_until_it_has_ended() -> None:
    shell = MemoryShell()
    driver, viewer = stage(shell)
    began = shell.now

    republish(driver, "j", 1)
    (row,) = jobs(viewer)
    assert row == {
        "job": "j",
        "operation": "republish",
        "state": "running",
        "subject": None,
        "identity": DRIVER,
        "beganAt": began,
        "endedAt": None,
        "detail": None,
    }
    shell.advance(5_000)
    republish(driver, "j", 2, ended=True)

    (row,) = jobs(viewer)
    assert (row["state"], row["beganAt"], row["endedAt"]) == ("done", began, began + 5_000)


def test_a_job_whose_driver_is_gone_was_interrupted_until_somebody_goes_on() -> None:
    shell = MemoryShell()
    driver, viewer = stage(shell)
    republish(driver, "j", 1)

    driver.drop()
    assert states(viewer) == {"j": "interrupted"}
    shell.pass_time(60)
    assert states(viewer) == {"j": "interrupted"}, "nothing resumes it"

    again = shell.connect(DRIVER)
    republish(again, "j", 2)
    assert states(viewer) == {"j": "running"}
    republish(again, "j", 3, ended=True)
    assert states(viewer) == {"j": "done"}


def test_what_a_restart_interrupted_is_shown_and_what_has_ended_stays_so() -> None:
    shell = MemoryShell()
    driver, _ = stage(shell)
    republish(driver, "ended", 1, ended=True)
    shell.save_snapshot()
    republish(driver, "cut", 2)

    for again in (shell.restarted(), shell.restarted().restarted()):
        viewer = again.connect("@(ops/viewer)")
        assert states(viewer) == {"cut": "interrupted", "ended": "done"}
        assert [one["identity"] for one in jobs(viewer)] == [DRIVER, DRIVER]


def test_jobs_outlive_the_part_of_the_log_that_they_began_in() -> None:
    shell = MemoryShell()
    driver, _ = stage(shell)
    republish(driver, "cut", 1)
    end = len(shell.engine.entries)

    assert shell.hub.anchors.anchored() < end
    shell.perform(shell.hub.anchors.anchor(end, shell.now))
    shell.settle()
    assert (shell.hub.replayer.anchored() or 0) >= end, "the log may be cut up to here"
    cut = shell.restarted()
    cut.engine.cut(end)
    assert states(cut.restarted().connect("@(ops/viewer)")) == {"cut": "interrupted"}

    written = [one for one in shell.engine.entries if one.offset >= end]
    assert not any(DRIVER.encode() in one.body for one in written), "nothing could erase the name"


def test_an_erasure_is_done_or_has_failed() -> None:
    shell = MemoryShell()
    driver, viewer = stage(shell)
    publish(shell.connect("@(a/ada)"))

    assert driver.ask("hub:erase", {"actor": "@(a/ada)"})["type"] == "hub:erased"
    (row,) = jobs(viewer)
    assert (row["operation"], row["state"], row["identity"]) == ("erase", "done", DRIVER)


def test_an_erasure_that_could_not_search_the_log_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell = MemoryShell()
    driver, viewer = stage(shell)
    monkeypatch.setattr(shell.engine, "locate", lambda locate, done: done(None))

    assert code_of(driver.ask("hub:erase", {"actor": "@(a/ada)"})) == "storage_failed"

    (row,) = jobs(viewer)
    assert (row["state"], row["detail"]) == ("failed", "storage_failed")
    viewer = shell.restarted().connect("@(ops/viewer)")
    assert states(viewer) == {row["job"]: "failed"}


def test_a_job_that_never_began_is_not_listed() -> None:
    shell = MemoryShell()
    driver, viewer = stage(shell)
    shell.engine.is_full = True

    payload = {"job": "j", "until": UNTIL, "to": {"topic": TOPIC}}
    copy = {"epoch": 1, "offset": 1, "id": "m", "type": "news"}
    reply = driver.ask("hub:republish", payload | {"messages": [copy]})

    assert code_of(reply) == "storage_full"
    assert jobs(viewer) == []


def test_erasing_whoever_drove_a_job_takes_the_name_out_of_the_list() -> None:
    shell = MemoryShell()
    driver, viewer = stage(shell)
    republish(driver, "j", 1, ended=True)

    viewer.ask("hub:erase", {"actor": DRIVER})

    assert {one["job"]: one["identity"] for one in jobs(viewer)}["j"] is None
    shell.save_snapshot()
    again = shell.restarted().connect("@(ops/viewer)")
    assert {one["job"]: one["identity"] for one in jobs(again)}["j"] is None


def test_the_newest_jobs_are_kept() -> None:
    kept = Jobs(jobs_max=3)
    for number in range(5):
        kept.note(OperatedBody("", "", "admin", "erase", "begin", f"j{number}"), number, number)

    assert [one.job for one in kept.newest(2)] == ["j4", "j3"]
    assert len(kept) == 3


def test_looking_at_jobs_needs_the_permission_to_view() -> None:
    shell = guarded()
    viewer = admitted(shell, "ops/vera", {"admin": ["view"]})
    other = admitted(shell, "ops/otto", {"admin": ["republish"]})

    assert jobs(viewer) == []
    refused = other.ask("hub:list_jobs")
    assert refused["payload"]["details"] == {"action": "admin", "target": "view"}
