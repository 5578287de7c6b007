"""JSON (with // comments), YAML and TOML files of other tools: parsed safely, within limits, with the line of a key."""

from __future__ import annotations

import functools
import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vramcast.base.errors import UsageError, VramcastError
from vramcast.base.input_files import parse_json
from vramcast.jobs.text_files import read_text, text_instead
from vramcast.jobs.yaml_file import Key, parse_yaml

LineOf = Callable[[Key], int | None]

_DEEPEST = 40
_LARGEST_NUMBER = 10**40
_JSON, _YAML, _TOML = (".json", ".jsonc"), (".yaml", ".yml"), (".toml",)
_TOML_PARTS = re.compile(r"[=\[\]{},]")
_COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*")|//[^\n]*')


@dataclass(frozen=True, slots=True)
class Document:
    data: Any
    line_of: LineOf


def read_document(path: Path) -> Document:
    """UsageError names the file and the line that cannot be read."""
    text = read_text(path)
    suffix = path.suffix.lower()
    if not text.strip():
        raise _empty(path)
    if suffix in _YAML:
        data, lines = parse_yaml(text, str(path))
        if data is None:
            raise _empty(path)
        return Document(data, lines.get)
    data = _parse_toml(text, path) if suffix in _TOML else _parse_json(text, path)
    _check_values(data, path)
    return Document(data, functools.partial(_search_line, text))


def check_not_empty(path: Path) -> None:
    """Of a file that no reader recognises."""
    if os.path.isfile(path) and os.path.getsize(path) == 0:
        raise _empty(path)


def _empty(path: Path) -> UsageError:
    return UsageError(f"{path} is empty: a training config is expected; `vramcast init` writes one to begin with")


def beside(name: str, folder: Path) -> Path:
    """A path in a config: relative to the config's folder, or else to the one in which the training is started."""
    here = os.path.expanduser(name)
    path = folder / here
    return path if os.path.exists(path) else Path(here)


def peek(path: Path, *suffixes: str) -> dict[str, Any]:
    """The keys of a file with one of these suffixes; {} for any other file, and for what cannot be read."""
    try:
        if path.suffix.lower() not in (suffixes or (*_JSON, *_YAML, *_TOML)) or not os.path.isfile(path):
            return {}
        return _peeked(path, path.stat().st_mtime_ns, text_instead(path))
    except OSError:
        return {}


@functools.lru_cache(maxsize=16)
def _peeked(path: Path, changed_ns: int, instead: str | None) -> dict[str, Any]:
    """Each reader looks at the same file in turn; it is parsed once."""
    try:
        data = read_document(path).data
    except VramcastError:
        return {}
    return data if isinstance(data, dict) else {}


def check_readable(path: Path) -> None:
    """For a file that no reader knew: UsageError when it is no proper JSON, YAML or TOML at all."""
    if path.suffix.lower() in (*_JSON, *_YAML, *_TOML):
        read_document(path)


def without_comments(text: str) -> str:
    """JSON with spaces in place of its // comments: everything else stays where it is."""
    return _COMMENT.sub(lambda match: match[1] or " " * len(match[0]), text)


def _parse_json(text: str, path: Path) -> Any:
    return parse_json(without_comments(text), str(path), functools.partial(_once_each, path))


def _once_each(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        names = [name for name, _ in pairs]
        twice = Counter(names).most_common(1)[0][0]
        raise UsageError(f"{path}: {twice}: this key is there twice")
    return mapping


def _parse_toml(text: str, path: Path) -> Any:
    for number, row in enumerate(text.splitlines(), 1):
        # The parser notes every beginning of a dotted key: their number grows with the square of its parts.
        if row.count(".") > _DEEPEST and max(part.count(".") for part in _TOML_PARTS.split(row)) > _DEEPEST:
            raise UsageError(f"{path}:{number}: a key of more than {_DEEPEST} parts")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: not TOML: {error}") from None
    except (RecursionError, ValueError) as error:
        raise UsageError(f"{path}: not TOML: {error}") from None


def _check_values(data: Any, path: Path, depth: int = 0) -> None:
    if depth > _DEEPEST:
        raise UsageError(f"{path}: nested too deeply")
    if isinstance(data, int) and abs(data) > _LARGEST_NUMBER:
        raise UsageError(f"{path}: a number of more than 40 digits")
    for value in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        _check_values(value, path, depth + 1)


def _search_line(text: str, key: Key) -> int | None:
    """JSON and TOML parsers do not tell lines: the names of the key are looked for one after the other."""
    start = 0
    for name in key:
        match = re.compile(rf"(?<![\w-]){re.escape(str(name))}(?![\w-])").search(text, start)
        if match is None:
            return None
        start = match.end()
    return text.count("\n", 0, start) + 1
