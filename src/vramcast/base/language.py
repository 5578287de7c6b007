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
    return typeset(found.format(**values)) if values else found


def name(word: str) -> str:
    """A name that the program itself gave: a kind of memory, a phase, a size. Names of others stay as they are."""
    return catalogue(_LANGUAGE.get()).get(word, word)


def typeset(text: str) -> str:
    """A text that was put together, as it is printed in the language in force: between Chinese characters there is no
    space, and beside them no comma, semicolon or colon of another script."""
    return text if _LANGUAGE.get() == "en" else _SPACE.sub("", _MARK.sub(_chinese_mark, text))


def _chinese_mark(found: re.Match[str]) -> str:
    return _MARKS[found[1] or found[2]]


def sentence(text: str) -> str:
    """A text that was put together in English, in the language in force; itself where no message is its own."""
    chosen = _LANGUAGE.get()
    if chosen == "en" or not text:
        return text
    return typeset(_sentence(text, chosen))


@lru_cache(maxsize=4096)
def _sentence(text: str, chosen: str) -> str:
    stripped = text.strip()
    indent = text[: len(text) - len(text.lstrip())]
    known = catalogue(chosen)
    if not stripped:
        return text
    if stripped in known:
        return indent + known[stripped]
    if " " not in stripped or not _WORD.search(stripped):
        return text
    return indent + (_figure(stripped, known) or _list(stripped, known) or _put_together(stripped, chosen))


def _put_together(text: str, chosen: str) -> str:
    """By the message that it was made from, or cut into such: the way that leaves the least in English."""
    if sum(map(text.count, _CLAUSES)) > _MOST_CLAUSES:
        return "".join(_CLAUSES.get(part) or _sentence(part, chosen) for part in _BETWEEN_CLAUSES.split(text))
    whole, any_value = (_matched(text, chosen, whole_clauses=strict) for strict in (True, False))
    ways = [way for way in (whole, *_cuts(text, chosen, _CLAUSES), any_value) if way is not None]
    return min(ways or [*_cuts(text, chosen, _PARTS), text], key=lambda way: len(_WORD.findall(way)))


def _figure(text: str, known: Mapping[str, str]) -> str | None:
    """A name and its size, "weights 1.29 GiB", "sequence 512"; two sizes, "1.00 s of 6.00 s (17%)"; or a name and how
    often it came, "stage timings (8)"."""
    if matched := _PART_OF_WHOLE.fullmatch(text):
        return known["{part} of {whole}"].format(part=matched[1], whole=matched[2]) + matched[3]
    if matched := _NAME_AND_COUNT.fullmatch(text):
        return f"{known[matched[1]]} ({matched[2]})" if matched[1] in known else None
    matched = _NAME_AND_SIZE.fullmatch(text) or _LENGTH.fullmatch(text)
    return f"{known[matched[1]]} {matched[2]}" if matched is not None and matched[1] in known else None


def _list(text: str, known: Mapping[str, str]) -> str | None:
    """Names alone: "backward, gradient sync and optimizer"."""
    names = _BETWEEN_NAMES.split(text)
    return "、".join(known[one] for one in names) if len(names) > 1 and all(one in known for one in names) else None


def _matched(text: str, chosen: str, *, whole_clauses: bool) -> str | None:
    """By the message that the text was made from. First those are tried whose values hold no clause of their own; what
    is added at the end of another value may."""
    for pattern, found in _patterns(chosen):
        matched = pattern.fullmatch(text)
        if matched is not None:
            values = matched.groupdict()
            if whole_clauses and any("; " in value for name, value in values.items() if not name.startswith(_ADDED)):
                continue
            if any(_CUT_QUOTE in value and not value.startswith('"') for value in values.values()):
                continue
            return found.format(*("" if value in _PLURALS else _sentence(value, chosen) for value in matched.groups()))
    return None


def _cuts(text: str, chosen: str, marks: Mapping[str, str]) -> Iterator[str]:
    """Cut at the first and at the last mark of each kind, and each part by itself, where one of them is known."""
    for mark, other in marks.items():
        for head, found, tail in dict.fromkeys((text.partition(mark), text.rpartition(mark))):
            if not found or head.isdigit():
                continue
            made = _sentence(head, chosen), _sentence(tail, chosen)
            if made != (head, tail):
                yield f"{made[0]}{other}{made[1]}"
            added = _matched(mark + tail, chosen, whole_clauses=True)
            if added is not None:
                yield made[0] + added
    number, found, rest = text.partition(". ")
    if found and number.isdigit():
        yield f"{number}. {_sentence(rest, chosen)}"
    if (matched := _SIZE_AND_TEXT.fullmatch(text)) and (rest := _sentence(matched[2], chosen)) != matched[2]:
        yield f"{matched[1]} {rest}"


_CHINESE = "[\u3000-\u303f\u4e00-\u9fff\uff01-\uff60]"
_SPACE = re.compile(f"(?<={_CHINESE}) (?={_CHINESE})")
_MARK = re.compile(f"(?<={_CHINESE})([,;:]) | ?([,;]) (?={_CHINESE})")
_MARKS = {",": "，", ";": "；", ":": "："}
_WORD = re.compile("[A-Za-z]{2}")
_NAME_AND_SIZE = re.compile(r"([a-z][a-z /-]*?) ([+−-]?[\d.,]+ ?(?:[KMGT]iB|B|%))")
_LENGTH = re.compile(r"(batch|sequence|height|width|frames) ([\d,]+)")
_NAME_AND_COUNT = re.compile(r"([A-Za-z][\w .=-]*) \(([\d,]+)\)")
_SIZE_AND_TEXT = re.compile(r"([\d.,]+ [KMGT]iB) (.+)")
_PART_OF_WHOLE = re.compile(r"([\d.,]+ ?[a-zµ]+) of ([\d.,]+ ?[a-zµ]+)((?: \([\d.,]+ ?%\))?)")
_BETWEEN_NAMES = re.compile(r", (?:and )?| and ")
_PLACE = re.compile(r"\{\d+\}")
_ADDED = "added"
_PLURALS = ("s", "es")
"""What an English word gets; other languages have no use for it."""
_FEWEST_LETTERS = 4
_CUT_QUOTE = '", "'
"""In a value that does not begin with a quote, it is the end of one name in quotes and the beginning of another."""
_CLAUSES = {": ": "：", "; ": "；", ". ": "。"}
_MOST_CLAUSES = 6
"""In a longer text each clause is looked up by itself: trying every cut takes too long."""
_BETWEEN_CLAUSES = re.compile("(: |; |\\. )")
_PARTS = {" + ": " + ", ", ": "，", " with ": "，"}


@cache
def _patterns(chosen: str) -> list[tuple[re.Pattern[str], str]]:
    """Messages with places for values, those with the most words of their own first."""
    made = []
    for english, other in catalogue(chosen).items():
        own = _PLACE.split(english)
        if len(own) > 1 and len(re.findall("[A-Za-z]", "".join(own))) >= _FEWEST_LETTERS:
            made.append((sum(map(len, own)), re.compile(_pattern(own), re.DOTALL), other))
    made.sort(key=lambda one: -one[0])
    return [(pattern, other) for _, pattern, other in made]


def _pattern(own: list[str]) -> str:
    """A regular expression for a message, from its text between the places for values. A value right after another one
    is nothing, or begins as something that is added does: "; ", ", " or ": "."""
    plain = re.escape(own[0].replace("{{", "{").replace("}}", "}"))
    for place, part in enumerate(own[1:]):
        after_another = place > 0 and not own[place]
        plain += rf"(?P<{_ADDED}{place}>[;,:] .*?|)" if after_another else f"(?P<value{place}>(?!%).*?)"
        plain += re.escape(part.replace("{{", "{").replace("}}", "}"))
    return plain


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
