"""What the verbs that keep answering have in common: the folder they may read, and the extra they need."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vramcast.cli.options import import_nothing_from


def add_root_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--root", type=Path, default=Path(), metavar="DIR",
        help="only files below this folder are read (default: the current one)",
    )  # fmt: skip


def root_of(args: argparse.Namespace) -> Path:
    """The folder; nothing is imported from it unless code is allowed."""
    from vramcast.base.errors import UsageError

    root: Path = args.root.resolve()
    if not root.is_dir():
        raise UsageError(f"--root {args.root}: there is no such folder")
    if not args.allow_code:
        import_nothing_from(root, Path.cwd())
    return root


@contextmanager
def needing(packages: tuple[str, ...], message: str) -> Iterator[None]:
    """Where one of the packages cannot be imported, the message says what to install."""
    from vramcast.base.errors import UsageError

    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in packages:
            raise
        raise UsageError(message) from None
