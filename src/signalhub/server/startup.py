"""Recover the state of an earlier process from the snapshot and the log."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from signalhub.core.hub import Hub
from signalhub.core.streams.recovery import Recovery
from signalhub.engine.local import LocalEngine
from signalhub.engine.upkeep import refusal_of
from signalhub.log.errors import EntriesGone, LogDamaged
from signalhub.settings.model import Settings
from signalhub.state import inbox_key
from signalhub.state.store import KnownIdsWindow, SnapshotRow, StateStore
from signalhub.wire.errors import SettingsError
from signalhub.wire.room_ids import Names

log = logging.getLogger("signalhub.server")


def recover(hub: Hub, engine: LocalEngine, store: StateStore, now_ms: int) -> None:
    """Load the snapshot if it matches the log, and apply the entries after it.

    If damage hides entries that were to be applied, the hub knows only a part of what is stored.
    """
    hub.streams.begin(engine.epoch)
    hub.dedup.keep_fresh()
    hub.rooms.messages.ids.memory.keep_fresh()
    recovery = Recovery(hub.parts, hub.settings, now_ms)
    start = engine.first
    window = window_of(hub.settings)
    snapshot = store.load_snapshot(now_ms, window)
    since = engine.offset_at_time(now_ms - window.ids_ms)
    damage = engine.log.fault
    if damage is not None:
        # Serve what can be read, from any snapshot there is, and accept nothing new.
        hub.storage.stop(refusal_of(damage))
        if snapshot is None or engine.log.is_cut:
            hub.storage.hide(refusal_of(damage))
    if snapshot is not None and _begin(recovery, snapshot, engine):
        start, since = snapshot.offset, snapshot.seen_from
    elif snapshot is not None:
        log.warning("the snapshot does not match the log: rebuilding it from the log")
        store.forget_snapshot()
        if damage is not None:
            hub.storage.hide(refusal_of(damage))
    since = min(start, since)
    if damage is not None and engine.log.hole is not None and since < engine.first:
        hub.storage.hide(refusal_of(damage))
    since = max(engine.first, since)
    applied = 0
    try:
        for entry in engine.scan(since):
            if entry.offset < start:
                recovery.remember(entry)
            else:
                recovery.apply(entry)
                applied += 1
    except LogDamaged as found:
        log.error("the log is damaged and opened read-only", extra={"reason": str(found)})
        engine.log.found_damaged(found)
        hub.storage.hide(refusal_of(found))
    except EntriesGone:
        if damage is None:
            raise
        hub.storage.hide(refusal_of(damage))
    recovery.finish()
    for subscription in hub.streams.readers():
        if subscription.settlements:
            hub.dispatcher.wake(subscription)
    facts = {"head": engine.head, "applied": applied, "epoch": engine.epoch}
    is_whole = hub.storage.gap is None
    message = "the log is recovered" if is_whole else "the log is recovered up to the damage"
    log.info(message, extra=facts)


def room_names(hub: Hub, folder: Path) -> Names:
    """Return the hash for names of rooms; raises `SettingsError` if its key does not match."""
    mark = hub.rooms.directory.key_mark
    secret = hub.settings.rooms.secret
    key = secret.encode() if secret else inbox_key.read(folder)
    if key is None and mark is not None:
        raise SettingsError(
            f"the rooms in {folder} need their key, but {inbox_key.NAME} is missing: restore it "
            "from a backup, or set rooms.secret if that was used"
        )
    names = Names(key or inbox_key.make(folder))
    if mark is not None and names.mark != mark:
        source = "rooms.secret" if secret else inbox_key.NAME
        raise SettingsError(
            f"{source} is not the key the rooms in {folder} were written with (version "
            f"{mark.version}): messages would not be found with it; use the former key, or "
            "another data folder"
        )
    return names


def window_of(settings: Settings) -> KnownIdsWindow:
    """Return for how long accepted ids are kept."""
    rooms = settings.rooms
    return KnownIdsWindow(
        int(settings.dedup.window_s * 1000), int(rooms.repeat_s * 1000), rooms.repeat_memory_bytes
    )


def _begin(recovery: Recovery, snapshot: SnapshotRow, engine: LocalEngine) -> bool:
    """Restore the snapshot; `False` if it belongs to another log or cannot be read."""
    fits = snapshot.epoch == engine.epoch and engine.first <= snapshot.offset <= engine.head
    if not fits and engine.log.fault is None:
        return False
    try:
        recovery.restore(
            snapshot.next_id,
            snapshot.streams,
            snapshot.subscriptions,
            snapshot.remembered,
            snapshot.rooms,
            snapshot.room_ids,
            snapshot.replays,
            snapshot.placements,
        )
    except msgspec.MsgspecError as error:
        log.warning("the snapshot cannot be read", extra={"reason": str(error)})
        return False
    return True
