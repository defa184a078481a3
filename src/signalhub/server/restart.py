"""From a snapshot and the log to the state an earlier process left."""

from __future__ import annotations

import logging

from signalhub.core.hub import Hub
from signalhub.core.recovery import Recovery
from signalhub.engine.local import LocalEngine
from signalhub.state.store import Store

log = logging.getLogger("signalhub.server")


def recover(hub: Hub, engine: LocalEngine, store: Store, now_ms: int) -> None:
    """Load the snapshot if it fits the log, and apply what was written since."""
    hub.streams.log_epoch = engine.epoch
    recovery = Recovery(hub, now_ms)
    start = engine.first
    snapshot = store.load_snapshot()
    if snapshot is not None:
        fits = snapshot.epoch == engine.epoch and engine.first <= snapshot.offset <= engine.head
        if fits:
            recovery.restore(snapshot.next_id, snapshot.streams, snapshot.subscriptions)
            start = snapshot.offset
        else:
            log.warning("the snapshot does not fit the log and is made again from it")
            store.forget_snapshot()
    window_ms = int(hub.settings.dedup.window_s * 1000)
    since = min(start, engine.offset_at_time(now_ms - window_ms))
    applied = 0
    for entry in engine.scan(since):
        if entry.is_erased:
            continue
        if entry.offset < start:
            recovery.remember(entry)
        else:
            recovery.apply(entry)
            applied += 1
    recovery.finish()
    facts = {"head": engine.head, "applied": applied, "epoch": engine.epoch}
    log.info("the log is recovered", extra=facts)
