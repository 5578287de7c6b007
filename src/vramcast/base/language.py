"""The language that results are shown in: English as it stands in the code, or a gettext catalogue beside this file.

`say("needs {needs}", needs=...)` is what a reader sees. Messages of the catalogue have the English text as their key;
`locale/zh.po` is read as it is, so that nothing has to be compiled. JSON, notes and errors stay English.
"""

from __future__ import annotations

import ast
import contextlib
import os
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from functools import cache
from pathlib import Path

LANGUAGES = ("en", "zh")
_FOLDER = Path(__file__).parent / "locale"
_LANGUAGE: ContextVar[str] = ContextVar("language", default="en")


def say(message: str, **values: object) -> str:
    """The message in the language in force, with the values put in."""
    found = catalogue(_LANGUAGE.get()).get(message, message)
    return found.format(**values) if values else found


def name(word: str) -> str:
    """A name that the program itself gave: a kind of memory, a phase, a size. Names of others stay as they are."""
    return catalogue(_LANGUAGE.get()).get(word, word)


def language() -> str:
    return _LANGUAGE.get()


@contextlib.contextmanager
def spoken(chosen: str) -> Iterator[None]:
    token = _LANGUAGE.set(chosen)
    try:
        yield
    finally:
        _LANGUAGE.reset(token)


def usual_language() -> str:
    """That of the locale, where there is a catalogue for it."""
    said = next((value for key in ("LC_ALL", "LC_MESSAGES", "LANG") if (value := os.environ.get(key))), "")
    return next((one for one in LANGUAGES if said.lower().startswith(one)), "en")


@cache
def catalogue(chosen: str) -> Mapping[str, str]:
    """English → the other language; empty for English."""
    return {} if chosen == "en" else read_po((_FOLDER / f"{chosen}.po").read_text(encoding="utf-8"))


def read_po(content: str) -> dict[str, str]:
    """The messages of a .po file: `msgid` and `msgstr`, each one quoted line or several."""
    messages: dict[str, str] = {}
    said: dict[str, str] = {}
    field = ""
    for line in [*content.splitlines(), "msgid"]:
        word, _, quoted = line.strip().partition(" ")
        if word == "msgid" and said:
            messages[said["msgid"]] = said.get("msgstr", "")
            said = {}
        if word in ("msgid", "msgstr"):
            field = word
            said[field] = ast.literal_eval(quoted) if quoted else ""
        elif line.startswith('"'):
            said[field] += ast.literal_eval(line)
    messages.pop("", None)  # the header
    return {key: value for key, value in messages.items() if value}
