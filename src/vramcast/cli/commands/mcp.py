"""Answer a coding agent over the Model Context Protocol, on standard input and output, until the input ends.

Tools: predict, check, advise, gpus. Files are read below --root only, and no code that a job or config names is run
unless --allow-code is given. Needs the `mcp` extra: pip install "vramcast[mcp]".
"""

from __future__ import annotations

import argparse
from pathlib import Path

from vramcast.cli.options import EXIT_FITS, import_nothing_from


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--root", type=Path, default=Path(), metavar="DIR",
        help="the folder below which files are read (the current one)",
    )  # fmt: skip
    parser.add_argument(
        "--allow-code", action="store_true",
        help="let jobs run the Python code they name: factories, scripts, class paths, code in model folders",
    )  # fmt: skip


def execute(args: argparse.Namespace) -> int:
    from vramcast.base.errors import UsageError

    root = args.root.resolve()
    if not root.is_dir():
        raise UsageError(f"--root {args.root}: there is no such folder")
    if not args.allow_code:
        import_nothing_from(root, Path.cwd())
    try:
        from vramcast.mcp.server import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types", "anyio"):
            raise
        raise UsageError('the MCP SDK is missing: pip install "vramcast[mcp]"') from None
    serve(root, allow_code=args.allow_code)
    return EXIT_FITS
