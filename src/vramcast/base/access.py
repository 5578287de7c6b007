"""What reading a job may touch: which files, and whether code that it names may run.

Files: on the command line any, for whoever types a path means it; a server that answers others sets limits.

Code: what somebody typed (a script, a function, --trust-remote-code) or wrote in Python is asked for. What stands in a
file is not: it passes the one gate here, which --allow-code opens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from vramcast.base.errors import UsageError


@dataclass(frozen=True, slots=True)
class Limits:
    root: Path
    """Files are read only below it; links count as what they point at."""
    allow_code: bool = False
    sent: bool = False
    """The job was sent to a server, which does not run what is sent, whatever its options are."""


_LIMITS: ContextVar[Limits | None] = ContextVar("limits", default=None)


@contextlib.contextmanager
def limited(limits: Limits) -> Iterator[None]:
    token = _LIMITS.set(limits)
    try:
        yield
    finally:
        _LIMITS.reset(token)


def root_of_files() -> Path | None:
    """The folder below which files may be read; None: any may."""
    limits = _LIMITS.get()
    return None if limits is None else limits.root


def check_file(path: Path) -> None:
    """UsageError where the file, or folder, may not be read."""
    limits = _LIMITS.get()
    if limits is None:
        return
    try:
        inside = path.resolve().is_relative_to(limits.root.resolve())
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(f"cannot read {str(path)!r}: {error}") from None
    if not inside:
        raise UsageError(f"{path}: outside {limits.root}, below which files may be read (--root of `vramcast mcp`)")


SAYS = "{0} says `{1}`"


@dataclass(frozen=True, slots=True)
class CodePlace:
    """A place that asks for code to be run."""

    key: str
    """components.model.factory"""
    what: str
    """What it says: "factory: model.py:build"."""
    where: str = ""
    """The file."""

    def __str__(self) -> str:
        place = ": ".join(part for part in (self.where, self.key) if part)
        text = SAYS.format(place, self.what)
        return "".join(letter if letter.isprintable() else "?" for letter in text)


Ask = Callable[[tuple[CodePlace, ...]], bool]


class CodeGate:
    """Lets code run that was allowed, typed, or agreed to when asked; what was agreed to is known until the end of this
    process."""

    def __init__(self, *, allowed: bool = False, ask: Ask | None = None) -> None:
        self.allowed = allowed
        self._ask = ask
        self._typed: set[str] = set()
        self._agreed: set[str] = set()

    def typed(self, *places: CodePlace) -> None:
        """Allow these: the user typed them, or they stand in code that the user asked for."""
        self._typed |= {place.what for place in places}

    def was_typed(self, place: CodePlace) -> bool:
        return place.what in self._typed

    def check(self, *places: CodePlace) -> None:
        """UsageError where one of them may not run."""
        limits = _LIMITS.get()
        if limits is not None:
            for place in places[:1]:
                check_code(str(place))
            return
        closed = tuple(place for place in places if place.what not in self._typed | self._agreed)
        if self.allowed or not closed:
            return
        if self._ask is None or not self._ask(closed):
            more = f" (and {len(closed) - 1} more)" if len(closed) > 1 else ""
            raise UsageError(f"{closed[0]}{more}, which runs Python code: give --allow-code to let it run")
        self._agreed |= {place.what for place in closed}


def check_code(what: str) -> None:
    """UsageError where a server's limits do not let code run."""
    limits = _LIMITS.get()
    if limits is not None and limits.sent:
        raise UsageError(f"{what}: runs Python code, and what is sent to a server never runs")
    if limits is not None and not limits.allow_code:
        raise UsageError(f"{what}: runs Python code, which this server does not; start it with --allow-code for that")
