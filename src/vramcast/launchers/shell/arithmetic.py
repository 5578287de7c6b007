"""The arithmetic of shells, (( ... )) and $(( ... )): whole numbers, variables, comparisons, assignments."""

from __future__ import annotations

import re
from collections.abc import Callable

_LONGEST = 1_000
_LARGEST = 2**63
_TOKEN = re.compile(
    r"\s*(0[xX][0-9a-fA-F]{1,16}|[0-9]{1,18}(?![0-9])|[A-Za-z_]\w*|\*\*|\+\+|--|<<=|>>=|[-+*/%&|^]=|<<|>>|<=|>=|==|!=|"
    r"&&|\|\||[-+*/%()<>!=?:,~&|^])"
)
_ASSIGNING = ("=", "+=", "-=", "*=", "/=", "%=")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)\s*(?:[-+*/%]?=(?!=)|\+\+|--)|(?:\+\+|--)\s*([A-Za-z_]\w*)")
_LEVELS: tuple[dict[str, Callable[[int, int], int | None]], ...] = (
    {"||": lambda a, b: int(bool(a or b))},
    {"&&": lambda a, b: int(bool(a and b))},
    {"==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b)},
    {
        "<": lambda a, b: int(a < b), ">": lambda a, b: int(a > b),
        "<=": lambda a, b: int(a <= b), ">=": lambda a, b: int(a >= b),
    },
    {"+": lambda a, b: a + b, "-": lambda a, b: a - b},
    {
        "*": lambda a, b: a * b,
        "/": lambda a, b: None if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
        "%": lambda a, b: None if b == 0 else abs(a) % abs(b) * (-1 if a < 0 else 1),
    },
)  # fmt: skip

Lookup = Callable[[str], int | None]


def evaluate(text: str, lookup: Lookup) -> tuple[int | None, dict[str, int | None]]:
    """The value, None where it is not known or not followed, and the variables that it sets."""
    if not text.strip():
        return 0, {}
    parser = _Parser(text, lookup)
    try:
        value = parser.value()
    except (_NotFollowedError, RecursionError):
        return None, dict.fromkeys(assigned_in(text))
    return value, parser.changes


def assigned_in(text: str) -> set[str]:
    return {first or second for first, second in _ASSIGNED.findall(text[:_LONGEST])}


class _NotFollowedError(Exception):
    pass


class _Parser:
    def __init__(self, text: str, lookup: Lookup) -> None:
        self._lookup = lookup
        self.changes: dict[str, int | None] = {}
        self._tokens: list[str] = []
        self._at = 0
        self._text = text

    def value(self) -> int | None:
        if len(self._text) > _LONGEST:
            raise _NotFollowedError
        at, text = 0, self._text.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise _NotFollowedError
            self._tokens.append(match[1])
            at = match.end()
        result = self._assignment()
        while self._peek() == ",":
            self._next()
            result = self._assignment()
        if self._at < len(self._tokens):
            raise _NotFollowedError
        return result

    def _peek(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else ""

    def _next(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1] if self._at <= len(self._tokens) else ""

    def _assignment(self) -> int | None:
        if _is_name(self._peek()) and self._peek(1) in _ASSIGNING:
            name, operator = self._next(), self._next()
            value = self._assignment()
            if operator != "=":
                value = self._applied(operator[0], self._of(name), value)
            self.changes[name] = value
            return value
        condition = self._binary(0)
        if self._peek() != "?":
            return condition
        self._next()
        first = self._assignment()
        if self._next() != ":":
            raise _NotFollowedError
        second = self._assignment()
        return None if condition is None else first if condition else second

    def _binary(self, level: int) -> int | None:
        if level == len(_LEVELS):
            return self._power()
        result = self._binary(level + 1)
        while self._peek() in _LEVELS[level]:
            operator = self._next()
            result = self._applied(operator, result, self._binary(level + 1))
        return result

    def _applied(self, operator: str, left: int | None, right: int | None) -> int | None:
        if left is None or right is None:
            return None
        rule = next(level[operator] for level in _LEVELS if operator in level)
        value = rule(left, right)
        if value is None or abs(value) >= _LARGEST:
            raise _NotFollowedError
        return value

    def _power(self) -> int | None:
        base = self._unary()
        if self._peek() != "**":
            return base
        self._next()
        exponent = self._power()
        if base is None or exponent is None:
            return None
        if not 0 <= exponent < 64 or abs(base) ** exponent >= _LARGEST:
            raise _NotFollowedError
        return int(base**exponent)

    def _unary(self) -> int | None:
        token = self._next()
        if token in ("++", "--") and _is_name(self._peek()):
            return self._stepped(self._next(), token)
        if token in ("-", "+", "!"):
            value = self._unary()
            return None if value is None else -value if token == "-" else value if token == "+" else int(not value)
        if token == "(":
            value = self._assignment()
            if self._next() != ")":
                raise _NotFollowedError
            return value
        if token[:1].isdigit():
            is_octal = len(token) > 1 and token.isdigit() and token[0] == "0"
            if is_octal and not set(token) <= set("01234567"):
                raise _NotFollowedError
            return int(token, 8 if is_octal else 16 if token[:2] in ("0x", "0X") else 10)
        if not _is_name(token):
            raise _NotFollowedError
        value = self._of(token)
        if self._peek() in ("++", "--"):
            self._stepped(token, self._next())
        return value

    def _stepped(self, name: str, operator: str) -> int | None:
        value = self._of(name)
        self.changes[name] = None if value is None else value + (1 if operator == "++" else -1)
        return self.changes[name]

    def _of(self, name: str) -> int | None:
        return self.changes[name] if name in self.changes else self._lookup(name)


def _is_name(token: str) -> bool:
    return token[:1].isalpha() or token[:1] == "_"
