"""Split a command into options and what follows them, by a table of the options that the command has."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vramcast.base.errors import UsageError

Options = Mapping[str, str | bool]


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


@dataclass(frozen=True, slots=True)
class OptionTable:
    """The options that a command has, without leading dashes and with _ for -."""

    command: str
    with_value: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()
    short: Mapping[str, str] = field(default_factory=dict)
    """Other spellings: a letter → the name."""
    abbreviated: bool = False
    """Whether the beginning of a name will do, as in argparse."""
    ends_with: frozenset[str] = frozenset()
    """Options after whose value the command's own options end (python -m MODULE)."""

    def split(self, words: Sequence[str]) -> tuple[dict[str, str | bool], list[str]]:
        """The options in front, and the rest. UsageError for an option that the command does not have."""
        options: dict[str, str | bool] = {}
        at = 0
        while at < len(words):
            word = words[at]
            if not word.startswith("-") or word == "-":
                break
            at += 1
            if word == "--":
                break
            name, value = self._named(word)
            if name in self.flags:
                if value:
                    raise UsageError(f"{self.command}: {word.partition('=')[0]} takes no value")
                options[name] = True
                continue
            if value is None:
                if at == len(words):
                    raise UsageError(f"{self.command}: {word} needs a value")
                value = words[at]
                at += 1
            options[name] = value
            if name in self.ends_with:
                break
        return options, list(words[at:])

    def has(self, word: str) -> bool:
        """Whether a word is one of its options."""
        try:
            self._named(word)
        except UsageError:
            return False
        return True

    def _named(self, word: str) -> tuple[str, str | None]:
        """The option that a word spells, and the value in it."""
        if not word.startswith("--"):
            if len(word) < 2 or word[0] != "-":
                raise self._unknown(word)
            name = self.short.get(word[1], "")
            attached = word[2:].removeprefix("=")
            if name and (name in self.with_value or not attached):
                return name, attached or None
            # One dash and a whole name, or several letters that are flags (python -Bu).
            if name and all(self.short.get(letter) in self.flags for letter in word[1:]):
                return name, None
            raise self._unknown(word)
        spelt, equals, value = word[2:].partition("=")
        name = spelt.replace("-", "_")
        known = self.with_value | self.flags
        if name not in known and self.abbreviated:
            meant = [candidate for candidate in known if candidate.startswith(name)]
            name = meant[0] if len(meant) == 1 else name
        if name not in known:
            raise self._unknown(f"--{spelt}")
        return name, value if equals else None

    def _unknown(self, word: str) -> UsageError:
        near = difflib.get_close_matches(word.lstrip("-").replace("-", "_"), self.with_value | self.flags, 1, 0.5)
        meant = f"; is --{near[0]} meant?" if near else ""
        return UsageError(f"{self.command} has no option {word}{meant}")


def whole(command: str, name: str, value: str | bool, least: int = 0) -> int:
    """An option's value as a number."""
    text = str(value)
    if not text.isascii() or not text.isdecimal() or len(text) > 6 or int(text) < least:
        raise UsageError(f"{command}: --{name} needs a whole number from {least} on, not {text[:40]!r}")
    return int(text)
