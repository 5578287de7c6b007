"""The conditions of a shell script: what stands in [ ... ] and [[ ... ]]."""

from __future__ import annotations

import re
from collections.abc import Callable

from vramcast.launchers.shell.words import Words, matches

Status = bool | None
"""Whether a command succeeds; None where that is not known."""

_DEEPEST = 200
_COMPARED: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b, "-ne": lambda a, b: a != b, "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b, "-gt": lambda a, b: a > b, "-ge": lambda a, b: a >= b,
}  # fmt: skip


class Condition:
    """The words of [ ... ] and [[ ... ]]."""

    def __init__(self, words: list[str], shell: Words, *, is_double: bool) -> None:
        self._words, self._shell, self._is_double = words, shell, is_double
        self._at = 0
        self._depth = 0

    def value(self) -> Status:
        if not self._words:
            return False
        status = self._or()
        return status if self._at == len(self._words) else None

    def _peek(self) -> str | None:
        return self._words[self._at] if self._at < len(self._words) else None

    def _next(self) -> str:
        self._at += 1
        return self._words[self._at - 1] if self._at <= len(self._words) else ""

    def _or(self) -> Status:
        status = self._and()
        while self._plain(self._peek()) in ("||", "-o"):
            self._next()
            other = self._and()
            status = True if status or other else None if status is None or other is None else False
        return status

    def _and(self) -> Status:
        status = self._not()
        while self._plain(self._peek()) in ("&&", "-a"):
            self._next()
            other = self._not()
            status = False if status is False or other is False else None if status is None or other is None else True
        return status

    def _not(self) -> Status:
        negated = False
        while self._plain(self._peek()) == "!":
            self._next()
            negated = not negated
        status = self._primary()
        return status if not negated or status is None else not status

    def _plain(self, word: str | None) -> str:
        """The word as an operator, which may be quoted."""
        return "" if word is None else word.strip("'\"")

    def _primary(self) -> Status:
        word = self._next()
        self._depth += 1
        if self._depth > _DEEPEST:
            return None
        if self._plain(word) == "(":
            status = self._or()
            if self._plain(self._peek()) == ")":
                self._next()
            return status
        operator = self._plain(self._peek())
        if operator in ("=", "==", "!="):
            self._next()
            return self._compared(word, self._next(), negated=operator == "!=")
        if operator in _COMPARED:
            self._next()
            left, right = self._shell.whole(word), self._shell.whole(self._next())
            return None if left is None or right is None else _COMPARED[operator](left, right)
        if operator in ("=~", "<", ">", "-nt", "-ot", "-ef"):
            self._next()
            self._next()
            return None
        plain = self._plain(word)
        if re.fullmatch("-[a-zA-Z]", plain) and self._peek() is not None:
            operand = self._next()
            if plain == "-v":
                return self._shell.is_set(self._plain(operand))
            value = self._shell.known_text(operand)
            if plain not in ("-z", "-n"):
                return None if value is None else self._shell.file_is(plain, value)
            return None if value is None else (not value) == (plain == "-z")
        value = self._shell.known_text(word)
        return None if value is None else bool(value)

    def _compared(self, left: str, right: str, *, negated: bool) -> Status:
        text, expected = self._shell.known_text(left), self._shell.known_text(right)
        if text is None or expected is None:
            return None
        is_pattern = self._is_double and not right.startswith(("'", '"'))
        same = matches(text, expected) if is_pattern else text == expected
        return same != negated
