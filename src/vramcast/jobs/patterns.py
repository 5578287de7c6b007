"""Names by pattern: "layers.*.attn" as in file names, or simply a part of the name ("spynet")."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase


def matches(name: str, patterns: Iterable[str]) -> bool:
    return any(_matches(name, pattern) for pattern in patterns)


def _matches(name: str, pattern: str) -> bool:
    has_wildcard = any(sign in pattern for sign in "*?[")
    return fnmatchcase(name, pattern) if has_wildcard else pattern in name
