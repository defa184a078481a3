"""Plays a case of kind `client`: the Python client, on a link and in a time that the case moves."""

from __future__ import annotations

import asyncio
import heapq
import inspect
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import Context
from itertools import count
from typing import Any

import msgspec

from signalhub.client.answers import LetterCount, Original
from signalhub.client.client import Client
from signalhub.client.consumers import Consumer
from signalhub.client.message import Message
from signalhub.client.protocol.effects import (
    ConsumerEnded,
    Drop,
    Effect,
    Instant,
    Ready,
    Reported,
    Stop,
    Warned,
)
from signalhub.client.protocol.events import DeliveryHeldUp, MessageRefused
from signalhub.client.protocol.frame import FrameWriter
from signalhub.client.protocol.protocol import Protocol
from signalhub.client.protocol.restore import Membership
from signalhub.client.replay import Replay
from signalhub.client.requests import Register
from signalhub.client.transport.link import Link
from signalhub.client.transport.runner import ClientRunner
from signalhub.client.transport.token import current_token
from signalhub.clock import Ids
from signalhub.pacing import Backoff, Reconnect
from signalhub.testing import FakeClock
from signalhub.wire import errors
from signalhub.wire.errors import ClientError, GaveUp, Reject
from tests.support.vectors.matching import Kept

HUB = "@(cloudflare/signal-hub)"
URL = "ws://127.0.0.1:1/ws"
_ROUNDS_MAX = 10_000


class StagedLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is that of a fake clock."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self._moments: list[float] = []
        super().__init__()

    def time(self) -> float:
        return self.clock.mono_s()

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        heapq.heappush(self._moments, when)
        return super().call_at(when, callback, *args, context=context)

    async def settle(self) -> None:
        """Run until no callback is left that could run now."""
        await asyncio.sleep(0)
        for _ in range(_ROUNDS_MAX):
            if not self._ready:  # type: ignore[attr-defined]
                return
            await asyncio.sleep(0)
        raise AssertionError("the client never comes to rest")

    async def wait(self, ms: float) -> None:
        """Let time pass; every timer fires at its moment."""
        end_s = self.time() + ms / 1000
        while self._moments and self._moments[0] <= end_s:
            moment_s = heapq.heappop(self._moments)
            self.clock.advance(max(0.0, moment_s - self.time()))
            await self.settle()
        self.clock.advance(max(0.0, end_s - self.time()))
        await self.settle()


class StagedLink(Link):
    """A link that keeps what is written; cut by the client, it is gone."""

    def __init__(self, frames: list[Any], cut: Callable[[Link, str], None]) -> None:
        super().__init__(lambda _: None, lambda _: None)
        self._frames = frames
        self._cut = cut

    def send(self, frame: bytes) -> None:
        self._frames.append(json.loads(frame))

    def close(self, reason: str, code: object = None) -> None:
        pass

    def abort(self, reason: str) -> None:
        self._loop.call_soon(self._cut, self, reason)


class StagedRunner(ClientRunner):
    """Has a link when the case says so, and keeps what it reports."""

    def __init__(self, protocol: Protocol, clock: FakeClock, given: Mapping[str, Any]) -> None:
        numbers = list(given.get("random") or [0.0])
        policy = given.get("reconnect", {})
        jitter = policy.get("firstJitterMs", 30_000) / 1000
        reconnect = Reconnect(
            first_jitter_s=jitter,
            base_s=policy.get("baseMs", 100) / 1000,
            cap_s=policy.get("capMs", 30_000) / 1000,
            factor=policy.get("factor", 2.0),
            attempts_max=policy.get("attemptsMax"),
        )
        self.backoff = Backoff(
            reconnect, lambda: numbers.pop(0) if len(numbers) > 1 else numbers[0]
        )
        self.frames: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self._ready_s: float | None = None
        super().__init__(
            URL,
            protocol,
            self.backoff,
            clock,
            token=given.get("token"),
            ssl=None,
            inbox_max=given.get("inboxMax", 10_000),
        )

    async def open(self) -> None:
        token = await current_token(self.token)
        self._link = StagedLink(self.frames, self._cut)
        self._perform(self.protocol.opened(token, self.now()))

    def hear(self, frame: bytes) -> None:
        assert self._link is not None, "there is no link to hear from"
        self._received(frame)

    def lose(self, reason: str) -> None:
        assert self._link is not None, "there is no link to lose"
        self._lost(self._link, reason)
        ready_s, self._ready_s = self._ready_s, None
        if ready_s is not None:
            self.backoff.lost(self._clock.mono_s() - ready_s)

    def congested(self, is_congested: bool) -> None:
        self._congested(is_congested)

    def reading(self, is_reading: bool) -> None:
        self._reading(is_reading)

    def give_up(self, why: str) -> None:
        self._give_up(GaveUp(why))

    def _cut(self, link: Link, reason: str) -> None:
        if link is self._link:
            self.lose(reason)

    def _perform(self, effects: list[Effect]) -> None:
        self.events += [event for effect in effects if (event := _event(effect))]
        if any(isinstance(effect, Ready) for effect in effects):
            self._ready_s = self._clock.mono_s()
            self.backoff.succeeded()
        super()._perform(effects)


def _event(effect: Effect) -> dict[str, Any] | None:
    match effect:
        case Ready(session_id=session_id):
            return {"type": "connected", "sessionId": session_id}
        case Drop(reason=reason):
            return {"type": "drop", "reason": reason}
        case Stop(error=error):
            return {"type": "stopped", **error_facts(error)}
        case ConsumerEnded(key=key, error=error):
            names = dict(zip(("topic", "subscription"), key, strict=True))
            return {"type": "ended", **names, **error_facts(error)}
        case Warned(facts=facts):
            return {"type": "warning", "facts": plain(facts)}
        case Reported(event=MessageRefused() as event):
            return {"type": "refused", **plain(event)}
        case Reported(event=DeliveryHeldUp() as event):
            return {"type": "held_up", **plain(event)}
    return None


def error_facts(error: BaseException) -> dict[str, Any]:
    """An error as a case names it."""
    if isinstance(error, ClientError):
        names = ("code", "resolution", "retryable", "details")
        facts = {name: getattr(error, name) for name in names if hasattr(error, name)}
        return {"kind": type(error).__name__, "text": str(error), **facts}
    if isinstance(error, ValueError | TypeError):
        return {"kind": "Invalid", "text": str(error)}
    raise error


def camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


_MESSAGE = (
    *("original_id", "key", "headers", "dead_letter", "is_replay", "original"),
    *("expects_reply", "in_reply_to", "failure"),
)
_CONSUMER = (
    *("subscription_id", "epoch", "next", "head", "lag", "recovered", "lost", "kept"),
    "losses",
)
_FACTS: dict[type, tuple[str, ...]] = {
    Client: ("is_connected", "session_id", "durability", "dropped", "late_replies"),
    Consumer: ("topic", "subscription", "name", *_CONSUMER, "is_closed"),
    Replay: ("topic", "count", "complete", "next", "lost"),
    Message: (*_MESSAGE, "is_settleable", "is_open"),
}


def plain(value: Any) -> Any:
    """A result as a case names it: camel case, spans in milliseconds."""
    match value:
        case LetterCount():
            return {"count": int(value), "skipped": value.skipped}
        case msgspec.Struct():
            names = [name for name in value.__struct_fields__ if not name.startswith("_")]
            more = [name for name in _FACTS.get(type(value), ()) if hasattr(value, name)]
            return _members(value, [*names, *more])
        case Client() | Consumer() | Replay():
            return _members(value, [one for one in _FACTS[type(value)] if hasattr(value, one)])
        case tuple() if hasattr(value, "_fields"):
            return _members(value, [*value._fields])
        case list() | tuple():
            return [plain(each) for each in value]
        case frozenset():
            return sorted(value)
        case dict() if any(isinstance(each, tuple) for each in value.values()):
            return {name: plain(each) for name, each in value.items()}
    return value


def _members(value: Any, names: list[str]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name in names:
        member = plain(getattr(value, name))
        if name.endswith("_s"):
            name, member = f"{name[:-1]}ms", None if member is None else member * 1000
        members[camel(name)] = member
    return members


# Options whose Python names have another unit; the others are only spelled differently.
_SECONDS = {
    **{f"{name}Ms": f"{name}_s" for name in ("timeout", "lease", "retention", "backoff")},
    **{"ackTimeoutMs": "ack_timeout_s", "backoffCapMs": "backoff_cap_s", "delayMs": "delay_s"},
    **{"heartbeatMs": "heartbeat_s", "idleExpiryMs": "idle_expiry_s"},
}
_SPELLED = {"ttlMs": "ttl_ms", "ratePerSecond": "rate_per_s"}


def snake(name: str) -> str:
    return "".join(f"_{each.lower()}" if each.isupper() else each for each in name)


def python_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a case as keyword arguments."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        if name in _SECONDS:
            found[_SECONDS[name]] = value / 1000
        elif name == "until":
            found[name] = (value["epoch"], value["offset"])
        elif name == "edits":
            found[name] = {int(seq): edit for seq, edit in value.items()}
        else:
            found[_SPELLED.get(name, snake(name))] = value
    return found


def python_arguments(method: str, arguments: list[Any]) -> list[Any]:
    """Positional arguments of a case as Python takes them."""
    if method == "extend":
        return [arguments[0] / 1000]
    if method == "republish" and len(arguments) > 1:
        originals = [msgspec.convert(one, Original) for one in arguments[1]]
        return [arguments[0], originals]
    return arguments


class ClientStage:
    """One client, its program and its hub; the steps are methods named after them."""

    def __init__(self, loop: StagedLoop, given: Mapping[str, Any]) -> None:
        self.loop = loop
        self.kept = Kept()
        self.address = given.get("address", "@(demo/alice)")
        ids = Ids()
        ids.next = map(b"id-%d".__mod__, count(1)).__next__
        membership = Membership(acknowledges=given.get("acknowledge", False))
        if given.get("register", True):
            lease_ms = given.get("leaseMs")
            registration = Register(
                self.address,
                given.get("capabilities", []),
                given.get("metadata", {}),
                None if lease_ms is None else lease_ms / 1000,
                given.get("durable"),
            )
            membership.registered(registration, is_done=False)
        protocol = Protocol(FrameWriter(self.address, ids), membership, Instant.of(loop.clock))
        self.runner = StagedRunner(protocol, loop.clock, given)
        self.client = Client(self.address, self.runner)
        self._named: dict[str, Any] = {"me": self.client}
        self._outcomes: dict[str, asyncio.Task[Any]] = {}
        self._taking: dict[str, asyncio.Task[Any]] = {}
        self._messages = self.client.messages()
        self._seen = 0
        self._is_drained = False

    async def play(self, steps: list[dict[str, Any]]) -> None:
        """Take the steps, one after another; an error says at which."""
        for index, step in enumerate(steps):
            try:
                await self._step(step)
            except AssertionError as error:
                raise AssertionError(f"at step {index + 1}, {json.dumps(step)}: {error}") from error

    async def end(self) -> None:
        """Nothing is left that no step has looked at; then everything ends."""
        frames = self.runner.frames[self._seen :]
        self.runner.give_up("the case is over")
        tasks = [*self._outcomes.values(), *self._taking.values()]
        await self.loop.settle()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.client.close()
        assert not frames or self._is_drained, f"written and not looked at: {frames}"

    async def _step(self, step: dict[str, Any], *, is_settled: bool = True) -> None:
        name = next(one for one in step if one not in ("on", "as", "options"))
        members = {snake(key.replace("as", "named") if key == "as" else key): value
                   for key, value in step.items() if key != name}  # fmt: skip
        found = getattr(self, f"step_{name}")(step[name], **members)
        if inspect.isawaitable(found):
            await found
        if is_settled:
            await self.loop.settle()

    # What the hub and the network do.

    async def step_open(self, _: Any) -> None:
        await self.runner.open()

    def step_greet(self, facts: dict[str, Any]) -> None:
        (hello,) = self._next_frames(1)
        assert hello["type"] == "hub:connect", f"{hello} is no hello"
        payload = {"sessionId": "s-1", "capabilities": {}, **self.kept.filled(facts)}
        metadata = payload.pop("metadata", {})
        self._answer(hello, "hub:connected", payload, metadata)

    async def step_restore(self, facts: dict[str, Any]) -> None:
        seats = facts.get("seats", {})
        self.step_greet({name: fact for name, fact in facts.items() if name != "seats"})
        for _ in range(_ROUNDS_MAX):
            if self.runner.is_ready:
                return
            (request,) = self._next_frames(1)
            payload = request["payload"]
            if request["type"] == "hub:register":
                address = {"actorAddress": payload["actorAddress"]}
                self._answer(request, "hub:registered", address)
            else:
                assert request["type"] == "hub:subscribe", f"{request} restores nothing"
                key = f"{payload['topic']}/{payload.get('subscription')}"
                granted = seats.get(key, {"epoch": "e1"}) if "subscription" in payload else {}
                self._answer(request, "hub:subscribed", granted)

    def _answer(
        self, request: dict[str, Any], type: str, payload: Any, metadata: Any = None
    ) -> None:
        members = {"type": type, "payload": payload, "correlationId": request["id"]}
        self.step_hear(members | ({"metadata": metadata} if metadata else {}))

    def step_hear(self, frame: dict[str, Any]) -> None:
        members = {
            "id": "h-1",
            "from": HUB,
            "to": self.address,
            "payload": None,
            "pattern": "tell",
            "correlationId": None,
            "timestamp": self.loop.clock.now_ms(),
            "metadata": {},
            "ttl": None,
            "signature": None,
        }
        self.runner.hear(json.dumps(members | self.kept.filled(frame)).encode())

    def step_hear_text(self, text: str) -> None:
        self.runner.hear(text.encode())

    def step_lose(self, reason: str) -> None:
        self.runner.lose(reason)

    def step_congested(self, is_congested: bool) -> None:
        self.runner.congested(is_congested)

    async def step_wait_ms(self, ms: float) -> None:
        await self.loop.wait(ms)

    # What the program does.

    def step_call(
        self,
        call: list[Any],
        on: str = "me",
        options: Mapping[str, Any] | None = None,
        named: str | None = None,
    ) -> None:
        method, *arguments = self.kept.filled(call)
        chosen = python_options(self.kept.filled(options or {}))
        target = self._named[on]

        async def outcome() -> Any:
            found = getattr(target, snake(method))(*python_arguments(method, arguments), **chosen)
            return await found if isinstance(found, Awaitable) else found

        task = self.loop.create_task(outcome())
        if named is None:
            named = f"call {len(self._outcomes)}"
        self._outcomes[named] = task
        task.add_done_callback(lambda done: self._note(named, done))

    def _note(self, named: str, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is None:
            self._named[named] = task.result()

    def step_cancel(self, named: str) -> None:
        self._outcomes[named].cancel()

    async def step_take(
        self, of: str, message: Any = None, failed: Any = None, named: str | None = None
    ) -> None:
        task = self._taking.pop(of, None) or self.loop.create_task(self._take(of))
        await self.loop.settle()
        if message == "nothing":
            assert not task.done(), f"there is {task.result()}"
            self._taking[of] = task
            return
        assert task.done(), "there is no message yet"
        if failed is not None:
            error = task.exception()
            assert error is not None, f"there is {task.result()}"
            self.kept.check(failed, error_facts(error))
            return
        taken = task.result()
        if message == "end":
            assert taken is None, f"there is {taken}"
            return
        assert taken is not None, "there is no other message"
        self.kept.check(message, plain(taken), "message")
        if named is not None:
            self._named[named] = taken

    async def _take(self, of: str) -> Message | None:
        source = self._messages if of == "me" else self._named[of]
        with suppress(StopAsyncIteration):
            found: Message = await anext(source)
            return found
        return None

    def step_handle(
        self,
        type: str,
        reject: Mapping[str, str] | None = None,
        fail: list[Any] | None = None,
        named: str | None = None,
    ) -> None:
        def handler(message: Message) -> None:
            if reject and message.payload in reject:
                raise Reject(reject[message.payload])
            if fail and message.payload in fail:
                raise ArithmeticError("it fails")

        self.client.on(type, handler)

    def step_answer(
        self,
        type: str,
        result: Any = None,
        fail: Mapping[str, str] | None = None,
        at_once: int = 16,
    ) -> None:
        def handler(message: Message) -> Any:
            if fail is None:
                return message.payload if result == "$payload" else result
            if "code" not in fail:
                raise ArithmeticError(fail["text"])
            known: Any = errors
            raise known.RequestFailed(fail["text"], code=fail["code"])

        client: Any = self.client
        client.answers(type, handler, at_once=at_once)

    def step_reading(self, is_reading: bool) -> None:
        self.runner.reading(is_reading)

    def step_give_up(self, why: str) -> None:
        self.runner.give_up(why)

    async def step_repeat(self, times: int, steps: list[dict[str, Any]]) -> None:
        for number in range(1, times + 1):
            self.kept.keep("$n", number)
            for step in steps:
                await self._step(step)

    async def step_together(self, steps: list[dict[str, Any]]) -> None:
        for step in steps:
            await self._step(step, is_settled=False)

    # What is expected.

    def _next_frames(self, least: int) -> list[dict[str, Any]]:
        frames = self.runner.frames[self._seen : self._seen + least]
        assert len(frames) == least, f"only {frames} was written"
        self._seen += least
        return frames

    def _rest(self) -> list[dict[str, Any]]:
        return self._next_frames(len(self.runner.frames) - self._seen)

    def step_sent(self, expected: Any) -> None:
        match expected:
            case "nothing":
                assert self._rest() == []
            case list():
                for each in expected:
                    self.step_sent(each)
                assert self._rest() == []
            case _:
                self.kept.check(expected, self._next_frames(1)[0], "frame")

    def step_sent_exactly(self, expected: dict[str, Any]) -> None:
        self.kept.check(expected, self._next_frames(1)[0], "frame", exactly=True)

    def step_sent_any(self, expected: list[Any]) -> None:
        frames = self._next_frames(len(expected))
        for each in expected:
            for frame in frames:
                with suppress(AssertionError):
                    self.kept.check(each, frame)
                    frames.remove(frame)
                    break
            else:
                raise AssertionError(f"{each} is not among {frames}")

    def step_sent_count(self, expected: Mapping[str, Any]) -> None:
        counts = Counter(frame["type"] for frame in self._rest())
        for type in counts.keys() | expected.keys():
            bounds = expected.get(type, 0)
            least, most = bounds if isinstance(bounds, list) else (bounds, bounds)
            assert least <= counts[type] <= most, f"{counts[type]} of {type}"

    def step_drain(self, _: bool) -> None:
        self._rest()
        self._is_drained = True

    def step_done(self, named: str, value: Any = "$any") -> None:
        task = self._outcomes[named]
        assert task.done(), "there is no outcome yet"
        assert task.exception() is None, f"it failed: {task.exception()!r}"
        self.kept.check(value, plain(task.result()), "value")

    def step_failed(self, named: str, **expected: Any) -> None:
        task = self._outcomes[named]
        assert task.done(), "there is no outcome yet"
        error = task.exception()
        assert error is not None, f"it is done: {task.result()}"
        self.kept.check(expected, error_facts(error), "error")

    def step_pending(self, named: str) -> None:
        assert not self._outcomes[named].done(), "there is an outcome"

    def step_event(self, expected: Any) -> None:
        members = {"type": expected} if isinstance(expected, str) else expected
        for index, event in enumerate(self.runner.events):
            if event["type"] == members["type"]:
                del self.runner.events[index]
                self.kept.check(members, event, "event")
                return
        raise AssertionError(f"there is no such event in {self.runner.events}")

    def step_no_event(self, type: str) -> None:
        assert [event for event in self.runner.events if event["type"] == type] == []

    def step_facts(self, of: str, value: Any) -> None:
        self.kept.check(value, plain(self._named[of]), "facts")

    def step_next_attempt_ms(self, expected: float | None, retry_after_ms: float = 0) -> None:
        wait_s = self.runner.backoff.next(retry_after_ms / 1000)
        if expected is None or wait_s is None:
            assert expected is wait_s, f"{wait_s} s"
        else:
            assert abs(wait_s * 1000 - expected) < 0.5, f"{wait_s} s"


def play_client(case: Mapping[str, Any]) -> None:
    """Play one case."""
    loop = StagedLoop()

    async def play() -> None:
        stage = ClientStage(loop, case.get("given", {}))
        try:
            await stage.play(case["steps"])
        except BaseException:
            stage.step_drain(True)
            await stage.end()
            raise
        await stage.end()

    try:
        loop.run_until_complete(play())
    finally:
        loop.close()
