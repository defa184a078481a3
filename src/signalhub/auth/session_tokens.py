"""Session tokens: what a hub without authentication issues.

They prove only that the hub gave this one to this session.
"""

from __future__ import annotations

import hashlib
import hmac

from signalhub.wire.base64url import decoded, encoded
from signalhub.wire.errors import Code, Refusal

TOKEN_CHARS_MAX = 8_192
SESSION_TOKEN_PREFIX = "stkn-"  # noqa: S105


class SessionTokens:
    """Issues and checks signed tokens: session, issue and expiry, in milliseconds."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def issue(self, session_id: str, now_ms: int, lifetime_ms: int) -> str:
        return self._write(session_id, now_ms, now_ms + lifetime_ms)

    def check(self, token: str, session_id: str, now_ms: int) -> None:
        """Raise `Refusal` with `invalid_token` unless it is this session's and still valid."""
        try:
            named, issued_at, expires_at, _ = _unwrap(token).rsplit(":", 3)
            expected = self._write(named, int(issued_at), int(expires_at))
        except ValueError:
            raise invalid_token("The token is not a session token.") from None
        # Comparing whole tokens leaves no second spelling of a valid one.
        if not hmac.compare_digest(expected.encode(), token.encode()):
            raise invalid_token("The token's signature is invalid.")
        if named != session_id:
            raise invalid_token("The token belongs to another session.")
        if now_ms >= int(expires_at):
            raise invalid_token("The token has expired.")

    def _write(self, session_id: str, issued_at_ms: int, expires_at_ms: int) -> str:
        statement = f"{session_id}:{issued_at_ms}:{expires_at_ms}"
        seal = hmac.new(self._secret, statement.encode(), hashlib.sha256).hexdigest()
        return SESSION_TOKEN_PREFIX + encoded(f"{statement}:{seal}".encode())


def _unwrap(token: str) -> str:
    if not token.startswith(SESSION_TOKEN_PREFIX) or len(token) > TOKEN_CHARS_MAX:
        raise ValueError("not a session token")
    return decoded(token.removeprefix(SESSION_TOKEN_PREFIX)).decode()


def invalid_token(message: str) -> Refusal:
    """The refusal of a token that does not fit its session."""
    return Refusal(Code.INVALID_TOKEN, message, "Get a new token, or connect again.")
