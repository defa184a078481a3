"""The server under test: the real front door, picows and assembler, with an echo behind them.

Like the hub, it answers binary messages in text, and opens the door with the first good message.
"""

from __future__ import annotations

import picows

from signalhub.server.port.door import Door
from signalhub.server.port.http import Response, Routes
from signalhub.server.port.listener import Listener, listen
from signalhub.settings.model import Settings
from signalhub.wire.frames import (
    Assembler,
    CloseCode,
    Closed,
    CompleteMessage,
    Ping,
    Violation,
    is_text,
    pong_frame,
    text_header,
)

MESSAGE_BYTES_MAX = 2**20
FRAME_BYTES_MAX = 2**21


class Echo(picows.WSListener):
    """Says everything back, reading frames the way the hub's connection does."""

    def __init__(self, door: Door) -> None:
        self._door: Door | None = door
        self._assembler = Assembler(MESSAGE_BYTES_MAX)

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        if transport.is_close_frame_sent:
            return
        payload = frame.get_payload_as_bytes()
        has_rsv = bool(frame.rsv1 or frame.rsv2 or frame.rsv3)
        is_whole_text = frame.msg_type == picows.WSMsgType.TEXT and frame.fin and not has_rsv
        if (
            is_whole_text
            and not self._assembler.is_pending
            and len(payload) <= MESSAGE_BYTES_MAX
            and is_text(payload)
        ):
            self._echo(transport, payload)
            return
        try:
            event = self._assembler.feed(int(frame.msg_type), bool(frame.fin), has_rsv, payload)  # type: ignore[call-overload]
        except Violation as violation:
            transport.send_close(violation.code, violation.reason)  # type: ignore[arg-type]
            # Half-closed, so that what the peer still sends cannot reset our last words away.
            transport.underlying_transport.write_eof()
            return
        match event:
            case CompleteMessage(data=data):
                self._echo(transport, data)
            case Ping(payload=payload):
                transport.underlying_transport.write(pong_frame(payload))
            case Closed(code=code):
                transport.send_close(code or CloseCode.NORMAL)  # type: ignore[arg-type]
                transport.disconnect()

    def _echo(self, transport: picows.WSTransport, data: bytes) -> None:
        transport.underlying_transport.write(text_header(len(data)) + data)
        if self._door is not None:
            self._door.opened()
            self._door = None


class OpenHouse:
    """A gatekeeper who lets everybody in."""

    def admit(self, source: str) -> Response | None:
        return None

    def accept(self, door: Door) -> picows.WSListener:
        return Echo(door)


async def listen_and_echo() -> Listener:
    settings = Settings(
        port=0,
        frame_bytes_max=FRAME_BYTES_MAX,
        hello_bytes_max=2 * FRAME_BYTES_MAX,
        hello_s=30.0,
    )
    return await listen(settings, Routes(), OpenHouse())
