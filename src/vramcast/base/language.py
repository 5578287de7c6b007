"""The language that results are shown in: English as it stands in the code, or a gettext catalogue beside this file.

`say("needs {needs}", needs=...)` is what a reader sees. Messages of the catalogue have the English text as their key;
`locale/zh.po` is read as it is, so that nothing has to be compiled. Errors, notes, help and lines of pages are put
together in English wherever they arise; `sentence` finds the message that such a text was made from, `{0}`, `{1}` in
place of what was put in. JSON stays English.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from functools import cache, lru_cache
from pathlib import Path

LANGUAGES = ("en", "zh")
_FOLDER = Path(__file__).parent / "locale"
_LANGUAGE: ContextVar[str] = ContextVar("language", default="en")


def say(message: str, **values: object) -> str:
    """The message in the language in force, with the values put in."""
    found = catalogue(_LANGUAGE.get()).get(message, message)
    if _LANGUAGE.get() != "en":
        values = {
            key: sentence(value) if isinstance(value, str) and " " in value else value for key, value in values.items()
        }
    return found.format(**values) if values else found


def name(word: str) -> str:
    """A name that the program itself gave: a kind of memory, a phase, a size. Names of others stay as they are."""
    return catalogue(_LANGUAGE.get()).get(word, word)


def sentence(text: str) -> str:
    """A text that was put together in English, in the language in force; itself where no message is its own."""
    chosen = _LANGUAGE.get()
    if chosen == "en" or not text:
        return text
    return _sentence(text, chosen)


@lru_cache(maxsize=4096)
def _sentence(text: str, chosen: str) -> str:
    stripped = text.strip()
    indent = text[: len(text) - len(text.lstrip())]
    known = catalogue(chosen)
    if stripped in known:
        return indent + known[stripped]
    if " " not in stripped or not _WORD.search(stripped):
        return text
    return indent + (
        _matched(stripped, chosen, whole_clauses=True)
        or _cut(stripped, chosen, _CLAUSES)
        or _matched(stripped, chosen, whole_clauses=False)
        or _cut(stripped, chosen, _PARTS)
        or stripped
    )


def _matched(text: str, chosen: str, *, whole_clauses: bool) -> str | None:
    """By the message that the text was made from. First those are tried whose values hold no clause of their own."""
    for pattern, found in _patterns(chosen):
        matched = pattern.fullmatch(text)
        if matched is not None and not (whole_clauses and any("; " in value for value in matched.groups())):
            return found.format(*(_sentence(value, chosen) for value in matched.groups()))
    return None


def _cut(text: str, chosen: str, marks: Mapping[str, str]) -> str | None:
    """Each part by itself, where one of them is known."""
    for mark, other in marks.items():
        head, found, tail = text.partition(mark)
        if found and not head.isdigit():
            made = _sentence(head, chosen), _sentence(tail, chosen)
            if made != (head, tail):
                return other.join(made)
    number, found, rest = text.partition(". ")
    return f"{number}. {_sentence(rest, chosen)}" if found and number.isdigit() else None


_WORD = re.compile("[A-Za-z]{2}")
_PLACE = re.compile(r"\{\d+\}")
_FEWEST_LETTERS = 4
_CLAUSES = {": ": "：", "; ": "；", ". ": "。"}
_PARTS = {" + ": " + ", ", ": "，"}


@cache
def _patterns(chosen: str) -> list[tuple[re.Pattern[str], str]]:
    """Messages with places for values, those with the most words of their own first."""
    made = []
    for english, other in catalogue(chosen).items():
        own = _PLACE.split(english)
        if len(own) > 1 and len(re.findall("[A-Za-z]", "".join(own))) >= _FEWEST_LETTERS:
            plain = "((?!%).*?)".join(re.escape(part.replace("{{", "{").replace("}}", "}")) for part in own)
            made.append((sum(map(len, own)), re.compile(plain, re.DOTALL), other))
    made.sort(key=lambda one: -one[0])
    return [(pattern, other) for _, pattern, other in made]


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
