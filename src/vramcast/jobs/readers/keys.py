"""The keys of a foreign config, read one by one, each with its type; keys that no reader asked for are reported."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from vramcast.base.errors import UsageError
from vramcast.jobs.fields import LARGEST_SIZE
from vramcast.jobs.readers.documents import Document, LineOf
from vramcast.jobs.references import nearest
from vramcast.jobs.validation import in_words
from vramcast.jobs.yaml_file import Key
from vramcast.trace import Note

_ALIKE = 0.84
"""How alike two names are, from 0 to 1; above this, one is a typo for the other."""
_MOST_NAMED = 14


class Keys:
    """A mapping of a config file. None, and what `absent` lists, count as left out."""

    def __init__(
        self, values: Any, where: str, line_of: LineOf = lambda key: None, key: Key = (), absent: Sequence[Any] = ()
    ) -> None:
        self.where, self._line_of, self._key, self._absent = where, line_of, key, absent
        if not isinstance(values, Mapping):
            self._fail(key, f"keys and values are needed, not {in_words(values)}")
        self._values: dict[str, Any] = {str(name): value for name, value in values.items()}
        self._asked: set[str] = set()
        self._sections: dict[str, Keys] = {}
        self._defaults: Mapping[str, Any] = {}

    def set_defaults(self, defaults: Mapping[str, Any]) -> None:
        """What the tool takes for keys that are left out."""
        self._defaults = defaults

    @classmethod
    def of(cls, document: Document, where: str, absent: Sequence[Any] = ()) -> Keys:
        return cls(document.data, where, document.line_of, absent=absent)

    def __contains__(self, name: str) -> bool:
        return self.take(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def take(self, name: str) -> Any:
        """The value as it is, or None."""
        self._asked.add(name)
        value = self._values.get(name)
        left_out = value is None or (isinstance(value, str) and value in self._absent)
        return self._defaults.get(name) if left_out else value

    def first(self, names: Sequence[str]) -> str | None:
        """The first of these that is there."""
        return next((name for name in names if name in self), None)

    def says(self, key: Key) -> bool:
        """Whether the key, a path from here, is there and not left to others."""
        name, *below = key
        if not below:
            return str(name) in self
        return isinstance(self.take(str(name)), Mapping) and self.section(str(name)).says(tuple(below))

    def whole(self, name: str, *, least: int = 1, most: int = LARGEST_SIZE) -> int | None:
        value = self.take(name)
        if value is None:
            return None
        if type(value) is not int:
            self.fail(name, f"a whole number is needed, not {in_words(value)}")
        if not least <= value <= most:
            self.fail(name, f"a whole number from {least:,} to {most:,} is needed, not {in_words(value)}")
        return value

    def number(self, name: str, *, least: float = 0) -> float | None:
        value = self.take(name)
        if value is None:
            return None
        if type(value) not in (int, float) or not value >= least:
            self.fail(name, f"a number from {least:g} up is needed, not {in_words(value)}")
        return float(value)

    def flag(self, name: str) -> bool | None:
        value = self.take(name)
        if value is not None and type(value) is not bool:
            self.fail(name, f"true or false is needed, not {in_words(value)}")
        return value

    def text(self, name: str, choices: Collection[str] = ()) -> str | None:
        value = self.take(name)
        if value is None:
            return None
        if not isinstance(value, str):
            self.fail(name, f"text is needed, not {in_words(value)}")
        if choices and value not in choices:
            self.fail(name, f"there is no {value!r}{nearest(value, choices)}")
        return value

    def names(self, name: str) -> list[str] | None:
        value = self.take(name)
        if isinstance(value, str):
            return [value]
        if value is not None and not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
            self.fail(name, f"a list of names is needed, not {in_words(value)}")
        return value

    def wholes(self, name: str) -> list[int] | None:
        value = self.take(name)
        if value is not None and not (isinstance(value, list) and all(type(item) is int for item in value)):
            self.fail(name, f"a list of whole numbers is needed, not {in_words(value)}")
        return value

    def section(self, name: str) -> Keys:
        """The mapping below `name`; an empty one where it is left out."""
        if name not in self._sections:
            value = self.take(name)
            below = {} if value is None else value
            self._sections[name] = Keys(below, self.where, self._line_of, (*self._key, name), self._absent)
        return self._sections[name]

    def need(self, name: str, example: str) -> NoReturn:
        misspelt = difflib.get_close_matches(name, set(self._values) - self._asked, n=1, cutoff=_ALIKE)
        if misspelt:
            self.fail(misspelt[0], f"there is no such key; did you mean {name!r}?")
        self.fail(name, f"this key is needed, e.g. {example}")

    def fail(self, name: str, message: str) -> NoReturn:
        self._fail((*self._key, name), message)

    def name_of(self, name: str) -> str:
        return ".".join(str(part) for part in (*self._key, name))

    def as_dict(self) -> dict[str, Any]:
        """The whole mapping, to hand over as it is."""
        self._asked |= set(self._values)
        return dict(self._values)

    def ignore(self, *names: str) -> None:
        """Mark a key as known and of no interest: neither used nor a typo."""
        self._asked |= set(names)

    def unused(self, known: Collection[str] = ()) -> list[str]:
        """Keys that no reader asked for, dotted. One that is nearly a known key is a mistake: UsageError."""
        names: list[str] = []
        missing = [name for name in self._asked if name not in self._values]
        for name in self._values:
            if name in self._sections:
                names += self._sections[name].unused(known)
            elif name not in self._asked:
                close = difflib.get_close_matches(name, missing, n=1, cutoff=_ALIKE)
                if close and name not in known:
                    self.fail(name, f"there is no such key; did you mean {close[0]!r}?")
                names.append(self.name_of(name))
        return names

    def only(self, known: Collection[str]) -> None:
        """UsageError for a key that the tool itself would refuse."""
        for name in self._values:
            if name not in known:
                self.fail(name, f"there is no such key{nearest(name, sorted(known))}")

    def _fail(self, key: Key, message: str) -> NoReturn:
        line = self._line_of(key)
        place = self.where if line is None else f"{self.where}:{line}"
        raise UsageError(f"{place}: {'.'.join(str(part) for part in key)}: {message}" if key else f"{place}: {message}")


def unused_note(names: Sequence[str], where: str) -> tuple[Note, ...]:
    """What to tell of keys that have no part in the prediction."""
    if not names:
        return ()
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return (Note("unused keys", f"{', '.join(names[:_MOST_NAMED])}{more}", where),)
