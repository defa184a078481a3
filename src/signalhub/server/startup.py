"""Recover the state of an earlier process from the snapshot and the log."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import msgspec

from signalhub.core.effects import Effect
from signalhub.core.hub import Hub
from signalhub.core.rooms.floor import EntriesLost
from signalhub.core.streams.recovery import Recovery
from signalhub.engine.local import LocalEngine
from signalhub.engine.upkeep import refusal_of
from signalhub.log.errors import EntriesGone, LogDamaged
from signalhub.log.head import Head
from signalhub.pipeline.source import known
from signalhub.pipeline.source.plan import LOG_FOLDER
from signalhub.server.losses import Losses
from signalhub.settings.model import Settings
from signalhub.state import clock_offset, inbox_key, losses, restored
from signalhub.state.store import FILE, KnownIdsWindow, SnapshotRow, StateStore
from signalhub.wire.errors import SettingsError
from signalhub.wire.room_ids import Names

log = logging.getLogger("signalhub.server")

KEPT_KEY_SET: Final = "key-set.json"
MADE: Final = (
    LOG_FOLDER,
    *(f"{name}*" for name in (FILE, clock_offset.NAME, inbox_key.NAME)),
    *(f"{begin}{name}*" for name in (losses.NAME, KEPT_KEY_SET) for begin in ("", ".")),
)
"""What a start may make in its data folder until the hub is ready, as patterns."""


def known_head(data: Path, listed: Losses) -> Head | None:
    """Return how far the log has been, as far as is known from elsewhere.

    Raises `SettingsError` if the log is gone and nobody has acknowledged that: it may lie on a disk
    that is not mounted, and what a new log accepts would be hidden behind that disk later.
    """
    loss = known.lost_log(data)
    if loss is None:
        return known.known_head(data)
    if not listed.has_acknowledged(loss):
        raise SettingsError(str(known.LogGone(data, loss)))
    # The new log begins a later epoch, so that the former one is recognized should it come back.
    return Head(loss.epoch, 0, 0)


class Continued(msgspec.Struct, frozen=True):
    """The snapshot that a hub continues with; its epoch is 0 if there was none."""

    epoch: int = 0
    offset: int = 0


class Past(msgspec.Struct, frozen=True):
    """What the folder says about earlier starts."""

    had_key: bool
    """It has the key of the rooms, which is made after the log."""
    was_restored: bool
    """A restore began the epoch of the log."""


def past_of(data: Path, epoch: int) -> Past:
    """Look at a folder whose log is in an epoch; call this before anything is made in it."""
    return Past(inbox_key.exists(data), restored.began(data, epoch))


def recover(hub: Hub, engine: LocalEngine, store: StateStore, now_ms: int) -> Continued:
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
    return Continued() if snapshot is None else Continued(snapshot.epoch, snapshot.offset)


def enter_epoch(
    hub: Hub, engine: LocalEngine, continued: Continued, past: Past, now_ms: int
) -> list[Effect]:
    """Let positions of rooms continue above those that members may know from before a loss.

    Call this when the names of rooms can be hashed. Nothing is accepted by a damaged log, so there
    is no hurry.
    """
    if engine.log.fault is not None:
        return []
    loss = None
    if _has_lost(hub, engine, continued, had_key=past.had_key):
        found = engine.recovery
        loss = EntriesLost(found.lost_to - found.lost_from if found.epoch_changed else 0)
    effects = hub.rooms.enter_epoch(engine.epoch, loss, now_ms)
    if loss is not None:
        facts = {"epoch": engine.epoch, "floor": hub.rooms.directory.floor}
        if past.was_restored and not engine.recovery.epoch_changed:
            text = "the hub was restored from a backup: rooms skip positions given after it"
            log.info(text, extra=facts)
        else:
            log.warning("the log has lost entries: rooms skip positions", extra=facts)
    return effects


def _has_lost(hub: Hub, engine: LocalEngine, continued: Continued, *, had_key: bool) -> bool:
    """May the log have lost entries since rooms were last told about its epoch?"""
    known, epoch = hub.rooms.directory.epoch, engine.epoch
    if continued.epoch == epoch and continued.offset > engine.head:
        # An older copy of the log was put back.
        return True
    if known:
        return known != epoch
    if engine.recovery.epoch == 0:
        # The log is new. Is the folder new, too?
        return had_key or continued.epoch != 0
    epochs = {epoch, *(info.epoch for info in engine.log.segments)}
    if len(epochs) == 1 and not engine.recovery.epoch_changed and continued.epoch in (0, epoch):
        return False
    # Version 0.1 continued without skipping positions; after its first message it is too late.
    is_late = continued.epoch == epoch and continued.offset > engine.epoch_first
    spoke = max((one.defined_at for one in hub.rooms.directory.inboxes.values()), default=-1)
    return not is_late and spoke < engine.epoch_first


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
    if mark is not None and not names.mark.is_for(mark):
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
