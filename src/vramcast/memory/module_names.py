"""Which modules a person means: a dotted name, with or without the component, or a pattern."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from fnmatch import fnmatchcase

from vramcast.base.errors import UsageError


def find_modules(wanted: str, names: Iterable[str]) -> tuple[str, ...]:
    """The modules that `wanted` names. * stands for anything between two dots: "model.layers.*", "*.attn"."""
    known = _with_parents(names)
    for pattern in (wanted, f"*.{wanted}"):
        matching = [name for name in known if _matches(name, pattern)]
        if matching:
            return tuple(matching)
    last = [name for name in known if name.endswith(f".{wanted}")]
    if len(last) == 1:
        return tuple(last)
    raise UsageError(f"there is no module {wanted!r}; {_suggestion(wanted, last or known)}")


def _with_parents(names: Iterable[str]) -> list[str]:
    """The names in order, with every name that others lie below."""
    known: dict[str, None] = {}
    for name in names:
        parts = name.split(".") if name else []
        for length in range(1, len(parts) + 1):
            known.setdefault(".".join(parts[:length]))
    return list(known)


def _matches(name: str, pattern: str) -> bool:
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def _suggestion(wanted: str, known: list[str]) -> str:
    tail = wanted.rpartition(".")[2]
    close = difflib.get_close_matches(wanted, known, n=3, cutoff=0.6)
    close += [name for name in known if name.rpartition(".")[2] == tail][:2]
    by_tail = {name.rpartition(".")[2]: name for name in reversed(known)}
    close += [by_tail[part] for part in difflib.get_close_matches(tail, by_tail, n=2, cutoff=0.7)]
    if close:
        return f"did you mean {', '.join(list(dict.fromkeys(close))[:4])}?"
    shown = [name for name in known if name.count(".") < 2][:8]
    return f"there is {', '.join(shown)}; patterns such as *.attn work too" if shown else "nothing of it has a name"
