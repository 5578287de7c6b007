"""Values that a user gives for what only a real run would know: `--assume train.py:120=3.5`."""

from __future__ import annotations

import ast
import contextlib
import json
import math
import os
import re
from dataclasses import dataclass
from typing import Any

from vramcast.base.errors import UsageError

_FORM = re.compile(r"(?P<file>[^=]+):(?P<line>[0-9]{1,7})=(?P<value>.+)", re.DOTALL)
_WORDS: dict[str, float | bool] = {
    "true": True, "false": False, "inf": math.inf, "-inf": -math.inf, "nan": math.nan,
}  # fmt: skip
_LONGEST = 10_000

Value = bool | int | float | list[Any]


@dataclass(frozen=True, slots=True)
class Assumption:
    """What a read of a tensor of the card gives in one line."""

    file: str
    line: int
    value: Value

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    def holds_at(self, where: str) -> bool:
        """`where`: file:line as a report names it. The file may be spelt with fewer folders in front."""
        file, _, line = where.rpartition(":")
        if line != str(self.line):
            return False
        wanted = os.path.normpath(self.file)
        return file == wanted or file.endswith(f"{os.sep}{wanted}") or os.path.abspath(file) == os.path.abspath(wanted)


def parse_assumption(text: str) -> Assumption:
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"--assume {text[:80]!r}: write it as FILE:LINE=VALUE, e.g. --assume train.py:120=3.5, with the file and "
            "the line as the report names them"
        )
    return Assumption(match["file"].strip(), int(match["line"]), _value(match["value"].strip(), text))


def _value(spelt: str, text: str) -> Value:
    if spelt.lower() in _WORDS:
        return _WORDS[spelt.lower()]
    parsed: Any = None
    if len(spelt) <= _LONGEST:
        for read in (json.loads, ast.literal_eval):  # [true, false], or [True, False]
            with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
                parsed = read(spelt)
    if isinstance(parsed, tuple):
        parsed = list(parsed)
    if not _is_value(parsed):
        raise UsageError(f"--assume {text[:80]!r}: the value must be a number, true, false, or a list of these: [1, 0]")
    value: Value = parsed
    return value


def _is_value(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(map(_is_value, value))
    return isinstance(value, (bool, int, float))
