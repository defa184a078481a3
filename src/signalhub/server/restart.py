"""From a snapshot and the log to the state an earlier process left."""

from __future__ import annotations

import logging

import msgspec

from signalhub.core import refusals
from signalhub.core.hub import Hub
from signalhub.core.recovery import Recovery
from signalhub.engine.local import LocalEngine
from signalhub.log.errors import EntriesGone, LogDamaged
from signalhub.state.store import SnapshotRow, Store

log = logging.getLogger("signalhub.server")


def recover(hub: Hub, engine: LocalEngine, store: Store, now_ms: int) -> None:
    """Load the snapshot if it fits the log, and apply what was written since."""
    hub.streams.log_epoch = engine.epoch
    hub.dedup.is_kept = True
    recovery = Recovery(hub, now_ms)
    start = engine.first
    window_ms = int(hub.settings.dedup.window_s * 1000)
    snapshot = store.load_snapshot(now_ms - window_ms)
    since = engine.offset_at_time(now_ms - window_ms)
    damage = engine.log.fault
    if damage is not None:
        # What can be read is served; the snapshot is the best there is, and nothing is changed.
        hub.storage_fault = refusals.storage_damaged(str(damage))
    if snapshot is not None and _begin(recovery, snapshot, engine):
        start, since = snapshot.offset, snapshot.seen_from
    elif snapshot is not None:
        log.warning("the snapshot does not fit the log and is made again from it")
        store.forget_snapshot()
    since = max(engine.first, min(start, since))
    applied = 0
    try:
        for entry in engine.scan(since):
            if entry.is_erased:
                continue
            if entry.offset < start:
                recovery.remember(entry)
            else:
                recovery.apply(entry)
                applied += 1
    except LogDamaged as found:
        log.error("the log is damaged and opened read-only", extra={"reason": str(found)})
        engine.log.found_damaged(found)
        hub.storage_fault = refusals.storage_damaged(str(found))
    except EntriesGone:
        if damage is None:
            raise
    recovery.finish()
    facts = {"head": engine.head, "applied": applied, "epoch": engine.epoch}
    log.info("the log is recovered", extra=facts)


def _begin(recovery: Recovery, snapshot: SnapshotRow, engine: LocalEngine) -> bool:
    """Start from the snapshot, unless it is of another log or cannot be read."""
    fits = snapshot.epoch == engine.epoch and engine.first <= snapshot.offset <= engine.head
    if not fits and engine.log.fault is None:
        return False
    try:
        recovery.restore(
            snapshot.next_id, snapshot.streams, snapshot.subscriptions, snapshot.remembered
        )
    except msgspec.MsgspecError as error:
        log.warning("the snapshot cannot be read", extra={"reason": str(error)})
        return False
    return True
