"""Names by pattern: "layers.*.attn" as in file names, or simply a part of the name ("spynet"); regular expressions for
tools that take them.

Python's own matching of regular expressions can take longer than the universe lasts, for a pattern of ten signs. Here a
pattern is followed through all places at once, so that the time grows with the pattern and the square of the name.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from fnmatch import fnmatchcase
from re import _constants as signs  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

from vramcast.base.errors import UsageError

_LONGEST_PATTERN = 1_000
_MOST_REPEATS = 1_000
_MOST_WORK = 20_000_000


def matches(name: str, patterns: Iterable[str]) -> bool:
    return any(_matches(name, pattern) for pattern in patterns)


def _matches(name: str, pattern: str) -> bool:
    has_wildcard = any(sign in pattern for sign in "*?[")
    return fnmatchcase(name, pattern) if has_wildcard else pattern in name


def matching_names(expression: str, names: Iterable[str], key: str) -> list[str]:
    """The names that the whole regular expression matches; `key` is named in the error where it is invalid or not
    supported."""
    if len(expression) > _LONGEST_PATTERN:
        raise UsageError(f"{key}: a pattern of more than {_LONGEST_PATTERN:,} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parsed = _parser.parse(expression)
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(f"{key}: {expression[:60]!r} is not a regular expression: {error}") from None
    if parsed.state.flags & ~(re.UNICODE | re.IGNORECASE):
        raise UsageError(f"{key}: {expression[:60]!r}: of the flags of regular expressions only (?i) is followed")
    follower = _Follower(key, expression, ignore_case=bool(parsed.state.flags & re.IGNORECASE))
    try:
        return [name for name in names if follower.is_whole(parsed, name)]
    except RecursionError:
        raise UsageError(f"{key}: {expression[:60]!r} is nested too deeply") from None


class _Follower:
    """Finds where a part of a pattern that begins at a given place of the name can end."""

    def __init__(self, key: str, expression: str, *, ignore_case: bool) -> None:
        self._key, self._expression, self._ignore_case = key, expression, ignore_case
        self._work = 0
        self._name = ""

    def is_whole(self, pattern: Any, name: str) -> bool:
        self._name = name.lower() if self._ignore_case else name
        return len(name) in self._sequence(pattern, {0})

    def _sequence(self, pattern: Any, starts: set[int]) -> set[int]:
        for sign, value in pattern:
            if not starts:
                return starts
            self._work += len(starts) + 1
            if self._work > _MOST_WORK:
                raise UsageError(f"{self._key}: {self._expression[:60]!r} takes too long to be followed")
            starts = self._ends(sign, value, starts)
        return starts

    def _ends(self, sign: Any, value: Any, starts: set[int]) -> set[int]:
        name = self._name
        if sign in (signs.LITERAL, signs.NOT_LITERAL, signs.ANY, signs.IN):
            return {at + 1 for at in starts if at < len(name) and self._matches_letter(sign, value, name[at])}
        if sign is signs.BRANCH:
            return set().union(*(self._sequence(branch, starts) for branch in value[1]))
        if sign is signs.SUBPATTERN and not value[1] and not value[2]:
            return self._sequence(value[3], starts)
        if sign in (signs.MAX_REPEAT, signs.MIN_REPEAT):
            least, most, repeated = value
            return self._repeated(least, most, repeated, starts)
        if sign is signs.AT:
            return {at for at in starts if self._is_at(value, at)}
        if sign in (signs.ASSERT, signs.ASSERT_NOT) and value[0] > 0:
            wanted = sign is signs.ASSERT
            return {at for at in starts if bool(self._sequence(value[1], {at})) is wanted}
        raise UsageError(f"{self._key}: {self._expression[:60]!r} uses {sign}, which is not followed; list the names")

    def _repeated(self, least: int, most: int, pattern: Any, starts: set[int]) -> set[int]:
        if least > _MOST_REPEATS:
            return set()
        for _ in range(least):
            starts = self._sequence(pattern, starts)
        ends, new = set(starts), starts
        for _ in range(min(int(most) - least, len(self._name) + 1)):
            new = self._sequence(pattern, new) - ends
            if not new:
                break
            ends |= new
        return ends

    def _matches_letter(self, sign: Any, value: Any, letter: str) -> bool:
        if sign is signs.ANY:
            return letter != "\n"
        if sign is signs.IN:
            negated = value[0][0] is signs.NEGATE
            return negated != any(
                self._matches_letter(kind, of_kind, letter) for kind, of_kind in value[int(negated) :]
            )
        if sign is signs.RANGE:
            return value[0] <= ord(letter) <= value[1] or (
                self._ignore_case and value[0] <= ord(letter.upper()[:1]) <= value[1]
            )
        if sign is signs.CATEGORY:
            return _is_of(value, letter)
        same = letter == (chr(value).lower() if self._ignore_case else chr(value))
        return same != (sign is signs.NOT_LITERAL)

    def _is_at(self, place: Any, at: int) -> bool:
        name = self._name
        if place in (signs.AT_BEGINNING, signs.AT_BEGINNING_STRING):
            return at == 0
        if place is signs.AT_END:
            return at == len(name) or (at == len(name) - 1 and name[at] == "\n")
        if place is signs.AT_END_STRING:
            return at == len(name)
        before = at > 0 and _is_of(signs.CATEGORY_WORD, name[at - 1])
        after = at < len(name) and _is_of(signs.CATEGORY_WORD, name[at])
        return (before != after) == (place is signs.AT_BOUNDARY)


def _is_of(category: Any, letter: str) -> bool:
    match category:
        case signs.CATEGORY_DIGIT:
            return letter.isdecimal()
        case signs.CATEGORY_NOT_DIGIT:
            return not letter.isdecimal()
        case signs.CATEGORY_SPACE:
            return letter.isspace()
        case signs.CATEGORY_NOT_SPACE:
            return not letter.isspace()
        case signs.CATEGORY_WORD:
            return letter.isalnum() or letter == "_"
        case _:
            return not (letter.isalnum() or letter == "_")
