"""A host: the process in which durable actors live, with a store and a connection to the hub.

The kernel's thread makes the decisions; the host, on the event loop, moves bytes: deliveries in,
effects out. Without a hub, actors of the host keep working; messages to others wait in the outbox.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, Final, Self, assert_never

import msgspec

from signalhub.actors import wire
from signalhub.actors.api.actor import Actor
from signalhub.actors.api.config import DurableConfig, for_host
from signalhub.actors.host.caller import ActorHub
from signalhub.actors.host.offload import run_offloaded
from signalhub.actors.host.thread import Turning
from signalhub.actors.kernel.commands import NAME_KEPT
from signalhub.actors.kernel.events import (
    ActorPlace,
    BatchRefused,
    CommandAnswer,
    Commanded,
    Connected,
    DeliveryArrived,
    Effect,
    Event,
    GiveAway,
    LocateActors,
    Moved,
    Offload,
    OffloadEnded,
    PlacesFound,
    PlacingFailed,
    Receipted,
    SendBatch,
    SettleDelivery,
)
from signalhub.actors.kernel.kernel import Kernel
from signalhub.actors.store.store import HostStore, StorageFailed
from signalhub.client import Client, Message, Reconnect, connect
from signalhub.client.transport.token import Token
from signalhub.clock import Clock, SteadyClock, SystemClock, boot_s
from signalhub.locks import LockedFolder
from signalhub.pacing import grown
from signalhub.wire.errors import ClientError, Code, Unavailable, UnknownActor
from signalhub.wire.errors import Refused as HubRefused
from signalhub.wire.names import path_of

log = logging.getLogger("signalhub.actors")

FILE: Final = "actors.db"
LOCK_NAME: Final = "actors.lock"
HOST_CAPABILITY: Final = "actor-host"
_CONNECT_S: Final = 0.2
_CONNECT_S_MAX: Final = 10.0
_SESSION_S: Final = 1.0
_PROBE_S: Final = 2.0
_MOVE_FINAL: Final = frozenset(
    {Code.STALE_PLACEMENT, Code.NO_HOST, Code.UNAUTHORIZED, Code.MALFORMED_MESSAGE}
)
# Refusals to an outside caller are final: the message has no other recipient.
_TELL_FINAL: Final = frozenset({Code.UNAUTHORIZED, Code.MALFORMED_MESSAGE})


def host_address(name: str) -> str:
    """The address of a host in the hub."""
    return f"{wire.HOST_PREFIX}{name})"


class Host:
    """Serves kinds of actors from a data folder. Use it as `async with Host(…) as host:`."""

    def __init__(
        self,
        *classes: type[Actor],
        data: str | os.PathLike[str],
        url: str,
        name: str | None = None,
        config: DurableConfig | None = None,
        foreign: Iterable[str] = (),
        token: Token = None,
        clock: Clock | None = None,
        replaces: bool = False,
        reached: Callable[[str], None] | None = None,
    ) -> None:
        """Open the store; nothing runs before `async with`.

        Args:
            classes: The kinds of actors to serve.
            data: The folder of this host; no other process may use it at the same time.
            url: The hub, such as `ws://127.0.0.1:8787/ws`.
            name: The name of this host in the hub. It is stored in the folder; by default one is
                generated.
            config: The configuration of all kinds, unless they override it.
            foreign: Kinds of other hosts that may be called by name, without their classes.
            token: For hubs that require one, as for `connect`.
            replaces: Take the name of a host whose folder is lost; its actors start empty here.
            reached: For tests: called at certain points of a turn.
        """
        self.config = config or DurableConfig()
        self._url = url
        self._token = token
        self._clock = SteadyClock(SystemClock(), boot_s) if clock is None else SteadyClock(clock)
        self._folder = LockedFolder(os.fspath(data), lock_name=LOCK_NAME, owner="actor host")
        try:
            durability = for_host(self.config, classes).durability
            store = HostStore(self._folder.path / FILE, durability=durability)
            self.name, self._instance = _identity(store, name)
            # Has the hub already known this folder by its name?
            self._is_name_ours = store.get_meta(NAME_KEPT) is not None
            self.address = host_address(self.name)
            self.kernel = Kernel(
                store,
                classes,
                host=self.address,
                config=self.config,
                foreign=foreign,
                reached=reached or (lambda point: None),
            )
            self.kernel.time.resume(self._clock)
        except BaseException:
            self._folder.close()
            raise
        self._turning = Turning(self.kernel, self._clock, self._committed)
        self._client: Client | None = None
        self._session_id = ""
        self._replaces = replaces
        self._offloaded: set[tuple[str, str]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self._is_closed = False
        # Does somebody wait in `run`, who gets the error that stops the host?
        self._is_watched = False
        self.is_connected = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        try:
            self.kernel.start(self._clock.now_ms(), self._clock.ahead_ms)
        except BaseException:
            await self.close()
            raise
        self._turning.on_fault = self._faulted
        self._turning.start()
        self._spawn(self._serve())
        self._spawn(self._watch_session())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _faulted(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)

    async def run(self) -> None:
        """Wait until the host stops; raises the error that stopped it, unless it was closed."""
        self._is_watched = True
        await self._ended.wait()
        if self._turning.fault is not None:
            raise self._turning.fault

    async def close(self) -> None:
        """Finish the running turn and stop. The rest continues at the next start."""
        if self._is_closed:
            return
        self._is_closed = True
        await asyncio.to_thread(self._turning.stop)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.close()
        # Otherwise the next process continues from the last turn.
        with suppress(StorageFailed):
            self.kernel.time.stop(self._clock.now_ms(), self._clock.ahead_ms)
        self.kernel.store.close()
        self._folder.close()
        self._ended.set()

    # From the hub.

    async def _serve(self) -> None:
        """Connect, however long it takes, and pass on deliveries."""
        try:
            self._client = client = await self._connected()
            self._notice_session(client)
            self.is_connected.set()
            async for message in client.messages():
                self._received(message)
            raise Unavailable("the connection to the hub has ended")
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # A host that no longer receives anything must not appear to be running.
            if not self._is_watched:
                log.error("the hub does not serve this host: %s", error)
            self._turning.fault = error
            self._ended.set()

    async def _connected(self) -> Client:
        attempts = 0
        problem = ""
        while True:
            try:
                await self._check_name()
                return await connect(
                    self._url,
                    self.address,
                    capabilities=[
                        HOST_CAPABILITY,
                        *(f"actor:{kind}" for kind in self.kernel.kinds.names),
                    ],
                    metadata={"instance": self._instance},
                    durable=True,
                    acknowledge=True,
                    encoded_types=[wire.BATCH],
                    token=self._token,
                    reconnect=Reconnect(first_jitter_s=1.0, cap_s=_CONNECT_S_MAX),
                )
            except Unavailable as error:
                # The same again is no news.
                level = logging.DEBUG if str(error) == problem else logging.WARNING
                problem = str(error)
                log.log(level, "no hub yet: %s; retrying until it is available", problem)
            except HubRefused as error:
                if not error.retryable or error.code == Code.DUPLICATE_HOST:
                    raise
                log.warning("the hub does not serve this host yet: %s", error)
            await asyncio.sleep(grown(_CONNECT_S, _CONNECT_S_MAX, attempts))
            attempts += 1

    async def _check_name(self) -> None:
        """Check that no other folder has this name, or its actors would exist twice.

        Raises `HubRefused` with `duplicate_host`.
        """
        try:
            async with ActorHub(self._url, token=self._token) as probe:
                pattern = path_of(self.address)
                found = await probe.client.discover(pattern, include_away=True)
                known = [one for one in found if one.address == self.address]
                if known and not known[0].away and await _answers(probe, self.address):
                    raise _duplicate(f"a host {self.name} is already running", "stop it first")
                if known and not self._is_name_ours and not self._replaces:
                    raise _duplicate(
                        f"the hub already knows a host {self.name}, whose actors live in another "
                        "folder",
                        "start that one, or choose another name; only if its folder is lost, "
                        "replace it",
                    )
        except HubRefused as error:
            if error.code == Code.DUPLICATE_HOST:
                raise
            # Without permission to look, skip the check; the hub still refuses another instance.
            log.debug("the name could not be checked: %s", error)
        if not self._is_name_ours:
            kept: asyncio.Future[dict[str, Any]] = self._loop.create_future()
            self.kernel_events([Commanded("keep_name", {}, kept)])
            await kept
            self._is_name_ours = True

    async def _watch_session(self) -> None:
        while True:
            await asyncio.sleep(_SESSION_S)
            if self._client is not None:
                self._notice_session(self._client)

    def _notice_session(self, client: Client) -> None:
        """The client reconnects automatically; tell the kernel that it did."""
        if client.session_id and client.session_id != self._session_id:
            self._session_id = client.session_id
            self.kernel_events([Connected()])

    def _received(self, message: Message) -> None:
        if self._client is not None:
            self._notice_session(self._client)
        if message.type == wire.CONTROL:
            if message.is_settleable:
                self._spawn(_settle([message]))
            self.kernel_events([_commanded(message)])
            return
        delivery = message.delivery
        accepted_ms = message.timestamp
        if delivery is not None and delivery.accepted_at is not None:
            accepted_ms = delivery.accepted_at
        payload = message.payload
        is_encoded = isinstance(payload, msgspec.Raw)
        data = bytes(payload) if is_encoded else msgspec.json.encode(payload)
        self.kernel_events(
            [
                DeliveryArrived(
                    message.type, data, message.sender, accepted_ms, message, wire.count(data)
                )
            ]
        )

    def kernel_events(self, events: Iterable[Event]) -> None:
        """Tell the kernel what has happened."""
        self._turning.put(events)

    # To the hub.

    def _committed(self, effects: list[Effect]) -> None:
        """On the kernel's thread: perform the effects of a committed turn."""
        self._loop.call_soon_threadsafe(self._perform, effects)

    def _perform(self, effects: list[Effect]) -> None:
        settles: list[Message] = []
        for effect in effects:
            match effect:
                case SettleDelivery():
                    settles.append(effect.delivery)
                case SendBatch():
                    self._spawn(self._send(effect))
                case LocateActors():
                    self._spawn(self._locate(effect))
                case GiveAway():
                    self._spawn(self._give_away(effect))
                case Offload():
                    self._spawn(self._offload(effect))
                case CommandAnswer():
                    self._spawn(self._answer(effect))
                case _:
                    assert_never(effect)
        if settles:
            self._spawn(_settle(settles))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, effect: SendBatch) -> None:
        self.kernel_events([await self._sent(effect)])

    async def _sent(self, effect: SendBatch) -> Receipted | BatchRefused:
        if self._client is None:
            return BatchRefused(effect.batch, "not connected to the hub yet")
        self._notice_session(self._client)
        try:
            await self._client.ask(
                effect.to,
                effect.type,
                msgspec.Raw(effect.data),
                ttl_ms=effect.ttl_ms,
                message_id=effect.batch,
                fences=effect.fences or None,
                timeout_s=self.kernel.config.outbound_timeout_ms / 1000,
                attempts=1,
            )
        except UnknownActor as error:
            return BatchRefused(effect.batch, str(error), is_final=effect.type == wire.RESULT)
        except HubRefused as error:
            return _refused(effect, error)
        except ClientError as error:
            return BatchRefused(effect.batch, str(error))
        except Exception as error:
            log.exception("a message to %s cannot be sent", effect.to)
            return BatchRefused(effect.batch, repr(error))
        return Receipted(effect.batch)

    async def _locate(self, effect: LocateActors) -> None:
        claims = effect.claims
        strangers = [one for one in effect.actors if one not in claims]
        # Pass each answer on at once, so that no related message overtakes it.
        if strangers:
            self.kernel_events([await self._placed(strangers, {})])
        if claims:
            self.kernel_events([await self._placed(list(claims), claims)])

    async def _placed(
        self, actors: list[str], claims: dict[str, int]
    ) -> PlacesFound | PlacingFailed:
        try:
            if self._client is None:
                raise Unavailable("not connected to the hub yet")
            host = self.address if claims else None
            found = await self._client.place(actors, host=host, tokens=claims or None)
        except ClientError as error:
            log.debug("could not ask for places: %s", error)
            return PlacingFailed(actors)
        except Exception:
            log.exception("error while asking for places")
            return PlacingFailed(actors)
        places = [ActorPlace(one.actor, one.host, one.token, one.fresh) for one in found.places]
        return PlacesFound(
            places,
            {one.actor: one.message for one in found.unplaced},
            [one.actor for one in found.unplaced if one.code == Code.STALE_PLACEMENT],
        )

    async def _give_away(self, effect: GiveAway) -> None:
        moved = Moved(effect.actor, None, "not connected to the hub yet")
        if self._client is not None:
            try:
                place = await self._client.move(effect.actor, effect.token, effect.to)
                moved = Moved(effect.actor, place.token)
            except HubRefused as error:
                moved = Moved(
                    effect.actor,
                    None,
                    str(error),
                    is_final=error.code in _MOVE_FINAL,
                    is_forgotten=effect.actor in error.details.get("forgotten", ()),
                )
            except ClientError as error:
                moved = Moved(effect.actor, None, str(error))
            except Exception as error:
                log.exception("error while moving %s", effect.actor)
                moved = Moved(effect.actor, None, repr(error))
        self.kernel_events([moved])

    async def _offload(self, effect: Offload) -> None:
        work = (effect.actor, effect.call_id)
        if work in self._offloaded:
            return  # After a failed turn the kernel asks again for work already in flight.
        self._offloaded.add(work)
        body = await run_offloaded(effect.function, effect.arguments)
        self._offloaded.discard(work)
        self.kernel_events([OffloadEnded(effect.actor, effect.call_id, body)])

    async def _answer(self, effect: CommandAnswer) -> None:
        if isinstance(effect.answer, asyncio.Future):
            effect.answer.set_result(effect.result)
            return
        request: Message = effect.answer
        asked = request.payload if isinstance(request.payload, dict) else {}
        body = {"id": asked.get("id"), **effect.result}
        if self._client is not None:
            try:
                await self._client.tell(request.sender, wire.ANSWER, body)
            except ClientError as error:
                log.warning("an answer to %s could not be sent: %s", request.sender, error)


async def _answers(probe: ActorHub, address: str) -> bool:
    """Does a running host use the address, rather than a stale connection?"""
    try:
        await probe.command(address, "stats", timeout_s=_PROBE_S)
    except TimeoutError:
        return False
    return True


def _duplicate(message: str, resolution: str) -> HubRefused:
    return HubRefused(Code.DUPLICATE_HOST, message, resolution=resolution)


async def _settle(messages: list[Message]) -> None:
    for message in messages:
        if message.is_settleable:
            try:
                await message.ack()
            except ClientError as error:
                # It is redelivered, and then recognized as a copy.
                log.debug("a delivery could not be settled: %s", error)
                return


def _refused(effect: SendBatch, error: HubRefused) -> BatchRefused:
    if error.code == Code.STALE_PLACEMENT:
        stale = [one["actor"] for one in error.details.get("stale", ())]
        return BatchRefused(effect.batch, str(error), stale)
    if error.code == Code.MESSAGE_TOO_LARGE:
        return BatchRefused(effect.batch, str(error), is_too_large=True)
    is_final = effect.type == wire.RESULT and error.code in _TELL_FINAL
    return BatchRefused(effect.batch, str(error), is_final=is_final)


def _commanded(message: Message) -> Commanded:
    body = message.payload if isinstance(message.payload, dict) else {}
    arguments = body.get("arguments")
    name = body.get("name")
    return Commanded(
        name if isinstance(name, str) else "",
        arguments if isinstance(arguments, dict) else {},
        message,
        shows_contents=body.get("contents") is not False,
    )


def _identity(store: HostStore, name: str | None) -> tuple[str, str]:
    """The name and instance of a host, stored in its folder."""
    with store.transaction():
        known, instance = store.get_meta("host"), store.get_meta("instance")
        if store.get_meta(NAME_KEPT) is None:
            known = name or known
        if known is not None and name is not None and known != name:
            raise ValueError(
                f"{store.path} belongs to the host {known}, and the hub knows its actors by that "
                "name. Omit the name, or choose another data folder"
            )
        known = known or f"host-{secrets.token_hex(4)}"
        instance = instance or secrets.token_hex(16)
        store.put_meta("host", known)
        store.put_meta("instance", instance)
    return known, instance
