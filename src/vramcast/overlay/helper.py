"""A process beside the one that runs the user's code. It was forked before, so it still sees the real disk: it writes
vramcast's own outputs, and removes the throw-away folder when the other has ended, in whatever way."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import struct
from collections.abc import Callable

from vramcast.base.outputs import write_here

_HEAD = struct.Struct("<IQ")
_NOTHING = 2**64 - 1
_PATIENCE_S = 0.5


class Helper:
    def __init__(self, folder: str | None = None) -> None:
        """`folder` is removed in the end."""
        self._socket, theirs = socket.socketpair()
        self._owner = os.getpid()
        self._child = os.fork()
        if self._child == 0:
            try:
                self._socket.close()
                _serve(theirs, self._owner)
            finally:
                if folder is not None:
                    shutil.rmtree(folder, ignore_errors=True)
                os._exit(0)
        theirs.close()

    def write(self, path: str, content: bytes | None, replace: bool) -> None:
        """Write as `outputs.write_here` does, on the real disk."""
        head = json.dumps([path, replace]).encode()
        self._socket.sendall(_HEAD.pack(len(head), _NOTHING if content is None else len(content)) + head)
        if content:
            self._socket.sendall(content)
        (length,) = struct.unpack("<I", _exactly(self._socket.recv, 4))
        answer = json.loads(_exactly(self._socket.recv, length))
        if answer is not None:
            raise OSError(*answer)

    def close(self) -> None:
        if os.getpid() != self._owner or self._child == 0:
            return
        self._socket.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._child, 0)
        self._child = 0


def _serve(connection: socket.socket, owner: int) -> None:
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    waiting: list[int | socket.socket] = [connection]
    with contextlib.suppress(AttributeError, OSError):  # elsewhere we look every now and then
        waiting.append(os.pidfd_open(owner))
    while os.getppid() == owner:
        ready = select.select(waiting, [], [], None if len(waiting) > 1 else _PATIENCE_S)[0]
        if connection in ready:
            try:
                _answer(connection)
            except (EOFError, OSError):
                return
        elif ready:
            return


def _answer(connection: socket.socket) -> None:
    head_length, length = _HEAD.unpack(_exactly(connection.recv, _HEAD.size))
    path, replace = json.loads(_exactly(connection.recv, head_length))
    content = None if length == _NOTHING else _exactly(connection.recv, length)
    answer: list[object] | None = None
    try:
        write_here(path, content, replace)
    except OSError as error:
        answer = [error.errno, error.strerror or str(error), path]
    text = json.dumps(answer).encode()
    connection.sendall(struct.pack("<I", len(text)) + text)


def _exactly(receive: Callable[[int], bytes], length: int) -> bytes:
    parts = []
    while length:
        part = receive(min(length, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
