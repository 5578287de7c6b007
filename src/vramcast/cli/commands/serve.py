"""Serve a page to play with: a job below this folder or an example, a card, sliders for its settings.

Open the address it prints in a browser. Only this computer can reach it unless --address says otherwise. Files are read
below --root only, and no code that a job names is run unless --allow-code is given; uploads never run code.
"""

from __future__ import annotations

import argparse
import signal
import sys

from vramcast.base.language import sentence
from vramcast.cli.options import EXIT_FITS
from vramcast.cli.servers import add_root_option, needing, root_of

_HIGHEST_PORT = 65535


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=_port, default=8008, metavar="N", help="the port (default %(default)s)")
    parser.add_argument(
        "--address", default="127.0.0.1", metavar="HOST",
        help="the address to listen on (default %(default)s: this computer alone)",
    )  # fmt: skip
    add_root_option(parser)
    parser.add_argument(
        "--allow-code", action="store_true",
        help="let jobs below --root run the Python code they name: factories, class paths, code in model folders",
    )  # fmt: skip


def execute(args: argparse.Namespace) -> int:
    root = root_of(args)
    with needing(("starlette", "uvicorn", "anyio"), "Starlette and uvicorn are missing: pip install starlette uvicorn"):
        from vramcast.serve.app import serve
    _check_free(args.address, args.port)
    ended_by: list[int] = []

    def end(number: int, frame: object) -> None:
        ended_by.append(number)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    try:  # in the end what was sent is removed, and the tracing process ended
        serve(root, args.address, args.port, allow_code=args.allow_code, started=_announce)
    except KeyboardInterrupt:
        return 128 + ended_by[-1]
    return EXIT_FITS


def _announce(address: str) -> None:
    print(f"vramcast: {sentence(f'{address} (Ctrl-C ends it)')}", file=sys.stderr, flush=True)


def _check_free(host: str, port: int) -> None:
    import socket

    from vramcast.base.errors import UsageError

    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((host, port))
    except OSError as error:
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port") from None


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text[:6]) <= _HIGHEST_PORT:
        raise argparse.ArgumentTypeError(f"a port from 1 to {_HIGHEST_PORT} is needed, not {text[:20]!r}")
    return int(text)
