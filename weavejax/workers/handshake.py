"""Both ends of a connection prove that they know the secret before a frame is read.

The listener sends a nonce; the dialler answers with its own nonce and an HMAC-SHA256 of both; the
listener answers with another. All parts have a fixed length, so that nothing an unknown peer
sends is parsed. The secret itself never travels. What follows is not encrypted.
"""

from __future__ import annotations

import hmac
import secrets
import socket

from weavejax.workers.frames import Channel

_NONCE_BYTES = 32
_PROOF_BYTES = 32


class RefusedConnectionError(ConnectionError):
    """The other end does not know the secret, or said nothing in time."""


def new_secret() -> bytes:
    """A fresh secret of one session."""
    return secrets.token_bytes(32)


def listen(interface: str, port: int = 0) -> socket.socket:
    """A listening socket on one interface only.

    Raises:
        OSError: the interface is not this host's; the message names it.
    """
    family = socket.AF_INET6 if ":" in interface else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((interface, port))
    except OSError as error:
        listener.close()
        raise OSError(
            f"ports are opened on the given interface, which must be an address of this host, "
            f"got {interface!r}: {error}"
        ) from None
    listener.listen(128)
    return listener


def accept(connected: socket.socket, secret: bytes, timeout_s: float = 5.0) -> Channel:
    """The listener's side.

    Raises:
        RefusedConnectionError: the peer did not prove that it knows the secret.
    """
    try:
        connected.settimeout(timeout_s)
        ours = secrets.token_bytes(_NONCE_BYTES)
        connected.sendall(ours)
        answer = _read(connected, _NONCE_BYTES + _PROOF_BYTES)
        theirs, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
        if not hmac.compare_digest(proof, _proof(secret, b"dialler", ours, theirs)):
            raise RefusedConnectionError("a peer that does not know the secret was refused")
        connected.sendall(_proof(secret, b"listener", ours, theirs))
        connected.settimeout(None)
    except OSError as error:
        connected.close()
        raise _refused(error) from None
    return Channel(connected)


def dial(address: tuple[str, int], secret: bytes, timeout_s: float = 5.0) -> Channel:
    """The dialler's side.

    Raises:
        RefusedConnectionError: nothing listens there, or it does not know the secret.
    """
    try:
        connected = socket.create_connection(address, timeout=timeout_s)
    except OSError as error:
        raise RefusedConnectionError(f"cannot reach {address[0]}:{address[1]}: {error}") from None
    try:
        theirs = _read(connected, _NONCE_BYTES)
        ours = secrets.token_bytes(_NONCE_BYTES)
        connected.sendall(ours + _proof(secret, b"dialler", theirs, ours))
        proof = _read(connected, _PROOF_BYTES)
        if not hmac.compare_digest(proof, _proof(secret, b"listener", theirs, ours)):
            raise RefusedConnectionError(
                f"{address[0]}:{address[1]} does not know the secret; is it another engine's?"
            )
        connected.settimeout(None)
    except OSError as error:
        connected.close()
        raise _refused(error) from None
    return Channel(connected)


def _proof(secret: bytes, role: bytes, listener_nonce: bytes, dialler_nonce: bytes) -> bytes:
    return hmac.digest(secret, role + listener_nonce + dialler_nonce, "sha256")


def _read(connected: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connected.recv(count - len(data))
        if not more:
            raise RefusedConnectionError("the peer closed the connection during the handshake")
        data += more
    return data


def _refused(error: OSError) -> RefusedConnectionError:
    if isinstance(error, RefusedConnectionError):
        return error
    return RefusedConnectionError(f"the handshake failed: {error}")
