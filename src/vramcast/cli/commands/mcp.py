"""Answer a coding agent over the Model Context Protocol, on standard input and output, until the input ends.

Tools: predict, check, advise, gpus. Files are read below --root only, and no code that a job or config names is run
unless --allow-code is given. Needs the `mcp` extra: pip install "vramcast[mcp]".
"""

from __future__ import annotations

import argparse

from vramcast.cli.options import EXIT_FITS
from vramcast.cli.servers import add_root_option, needing, root_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_root_option(parser)
    parser.add_argument(
        "--allow-code", action="store_true",
        help="let jobs run the Python code they name: factories, scripts, class paths, code in model folders",
    )  # fmt: skip


def execute(args: argparse.Namespace) -> int:
    root = root_of(args)
    with needing(("mcp", "mcp_types", "anyio"), 'the MCP SDK is missing: pip install "vramcast[mcp]"'):
        from vramcast.mcp.server import serve
    serve(root, allow_code=args.allow_code)
    return EXIT_FITS
