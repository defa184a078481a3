"""`python -m bench.uncharged serve`: the hub without counting what it reads from sockets."""

from __future__ import annotations

from typing import Any

from picows import WSFrame, WSMsgType, WSTransport

from signalhub.cli import main
from signalhub.server.sockets.picows import PicowsConnection, whole_or_piece

_TEXT = WSMsgType.TEXT


def on_ws_frame(self: PicowsConnection[Any], transport: WSTransport, frame: WSFrame) -> None:
    """Handle every frame at once, however many there are."""
    if transport.is_close_frame_sent and not self.is_closing:
        return
    payload = frame.get_payload_as_bytes()
    if frame.fin and frame.msg_type == _TEXT and not (frame.rsv1 or frame.rsv2 or frame.rsv3):
        if (
            self._assembler is None
            and self._door is None
            and not self.is_closing
            and payload.isascii()
        ):
            self.owner.received(self, payload)
        else:
            self._hear(payload)
    else:
        self._handle(whole_or_piece(frame, payload))


if __name__ == "__main__":
    PicowsConnection.on_ws_frame = on_ws_frame  # type: ignore[method-assign]
    main()
