"""Two ranks prove to each other that they know the group's token.

Takes a connected socket and gives back who is at the other end. Invariant: no more than 88 bytes are read from a
peer that has not proven itself, and neither side shows the token. Each side signs both sides' random numbers, its role
and both ranks (HMAC-SHA256), so that an answer is good for one connection only. What is sent later is not encrypted.
"""

import hmac
import secrets
import socket
import struct
import time

_MAGIC = b"xmesh001"
_HELLO = struct.Struct("<8s32sIIII")  # magic, nonce, sending rank, asked rank, world, zero
_NONCE, _PROOF = 32, 32
_WELCOME = b"\x01"


class RefusedError(Exception):
    """The other side is not who it should be, or went away."""


class WrongTokenError(RefusedError):
    """The other side answered, and its proof is wrong."""


def ask(sock: socket.socket, token: bytes, rank: int, peer: int, world: int, limit_s: float) -> None:
    """Prove to the listening rank `peer` that this is `rank`, and have it prove the same first.

    Raises:
        WrongTokenError: It does not know the token.
        RefusedError: It hung up, which it does where it does not expect this rank.
        TimeoutError: It did not answer within `limit_s`.
    """
    end = time.monotonic() + limit_s
    hello = _HELLO.pack(_MAGIC, secrets.token_bytes(_NONCE), rank, peer, world, 0)
    _write(sock, hello, end)
    answer = _read(sock, _NONCE + _PROOF, end)
    signed = hello + answer[:_NONCE]
    if not hmac.compare_digest(answer[_NONCE:], _proof(token, b"listens", signed)):
        raise WrongTokenError
    _write(sock, _proof(token, b"connects", signed), end)
    _read(sock, len(_WELCOME), end)


def answer(sock: socket.socket, token: bytes, rank: int, world: int, limit_s: float) -> int:
    """The rank that has connected to this one, once it has proven itself.

    Raises:
        WrongTokenError: It does not know the token.
        RefusedError: It is not of this group, or hung up.
        TimeoutError: It did not answer within `limit_s`.
    """
    end = time.monotonic() + limit_s
    hello = _read(sock, _HELLO.size, end)
    magic, _, source, asked, its_world, _ = _HELLO.unpack(hello)
    if magic != _MAGIC or asked != rank or its_world != world or not rank < source < world:
        raise RefusedError
    nonce = secrets.token_bytes(_NONCE)
    signed = hello + nonce
    _write(sock, nonce + _proof(token, b"listens", signed), end)
    if not hmac.compare_digest(_read(sock, _PROOF, end), _proof(token, b"connects", signed)):
        raise WrongTokenError
    return source


def welcome(sock: socket.socket) -> None:
    """Tell the rank that `answer` gave back that it is taken in."""
    sock.sendall(_WELCOME)


def _proof(token: bytes, role: bytes, signed: bytes) -> bytes:
    return hmac.digest(token, role + signed, "sha256")


def _read(sock: socket.socket, size: int, end: float) -> bytes:
    got = b""
    while len(got) < size:
        sock.settimeout(_left(end))
        part = sock.recv(size - len(got))
        if not part:
            raise RefusedError
        got += part
    return got


def _write(sock: socket.socket, data: bytes, end: float) -> None:
    sock.settimeout(_left(end))
    sock.sendall(data)


def _left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
