"""python [options] script.py | -m module."""

from __future__ import annotations

import re

from vramcast.base.errors import UsageError
from vramcast.launchers.options import OptionTable, names

NAME = re.compile(r"python(?:\d(?:\.\d+)?)?|pypy3?|ipython3?")

OPTIONS = OptionTable(
    "python",
    names("W X m c"),
    names("b B d E i I O P q s S u v x"),
    {letter: letter for letter in "WXmcbBdEiIOPqsSuvx"},
    ends_with=names("m c"),
)


def split(words: list[str]) -> tuple[bool, str, list[str], tuple[str, ...]]:
    """Whether a module is run, its name or the script's, the arguments, and what should be said."""
    options, rest = OPTIONS.split(words)
    if "c" in options:
        raise UsageError("python -c: put the code into a file, and run that")
    notes = ("python -O was not followed: assertions are checked",) if "O" in options else ()
    if "m" in options:
        return True, str(options["m"]), rest, notes
    if not rest or rest[0] == "-":
        raise UsageError("python: name the script that is to be run, or -m and a module")
    return False, rest[0], rest[1:], notes
