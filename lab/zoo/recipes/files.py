"""Plain files: texts, tables, whatever a line of the manifest can say."""

from __future__ import annotations

import csv
import gzip
import json
import random
from pathlib import Path
from typing import Any

_SYLLABLES = ("ba", "co", "di", "fu", "ga", "he", "ki", "lo", "me", "nu", "pa", "re", "si", "to", "vu", "za")


def word(number: int) -> str:
    """A made-up word for each number."""
    letters = ""
    number += len(_SYLLABLES)
    while number:
        number, digit = divmod(number, len(_SYLLABLES))
        letters += _SYLLABLES[digit]
    return letters


def sentence(draw: random.Random, words: int, vocabulary: int) -> str:
    """Words that are drawn as language is: few of them often, most of them seldom."""
    return " ".join(word(int(vocabulary ** draw.random()) - 1) for _ in range(words))


def file(folder: Path, *, name: str, text: str = "", document: Any = None) -> None:
    """A file with the given text, or a document as JSON."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text if document is None else json.dumps(document), encoding="utf-8")


def text(
    folder: Path, *, names: list[str], lines: int = 2000, words: int = 20, vocabulary: int = 5000, seed: int = 0,
    prefix: str = "",
) -> None:  # fmt: skip
    """Text files of made-up sentences, after `prefix`."""
    for number, name in enumerate(names):
        draw = random.Random(seed + number)
        body = "".join(sentence(draw, words, vocabulary) + "\n" for _ in range(lines))
        file(folder, name=name, text=prefix + body)


def records(
    folder: Path, *, names: list[str], fields: dict[str, Any], count: int = 200, vocabulary: int = 5000, seed: int = 0
) -> None:
    """JSON (a list), JSON lines, Parquet or CSV, by the file's ending. A field is a number of words, a list of values
    to draw from, or a literal text."""
    for number, name in enumerate(names):
        draw = random.Random(seed + number)
        rows = [{key: _value(kind, draw, vocabulary) for key, kind in fields.items()} for _ in range(count)]
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".json"):
            path.write_text(json.dumps(rows), encoding="utf-8")
        elif name.endswith(".jsonl"):
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        elif name.endswith(".parquet"):
            import pandas

            pandas.DataFrame(rows).to_parquet(path)
        else:
            with path.open("w", encoding="utf-8", newline="") as out:
                writer = csv.DictWriter(out, list(fields), delimiter="\t" if name.endswith(".tsv") else ",")
                writer.writeheader()
                writer.writerows(rows)


def _value(kind: Any, draw: random.Random, vocabulary: int) -> Any:
    if isinstance(kind, int):
        return sentence(draw, kind, vocabulary)
    if isinstance(kind, list):
        return draw.choice(kind)
    if isinstance(kind, dict):
        return {key: _value(inner, draw, vocabulary) for key, inner in kind.items()}
    return kind


def series(
    folder: Path, *, name: str, rows: int = 5000, columns: int = 7, date: str = "2016-07-01", minutes: int = 60,
    bare: bool = False,
) -> None:  # fmt: skip
    """A table of a date and as many random walks as columns, the last named OT; `bare`: without dates and names."""
    import datetime

    draw = random.Random(0)
    moment = datetime.datetime.fromisoformat(date)
    levels = [0.0] * columns
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out)
        if not bare:
            writer.writerow(["date", *(f"x{i}" for i in range(columns - 1)), "OT"])
        for _ in range(rows):
            levels = [level + draw.gauss(0, 0.1) for level in levels]
            stamp = [] if bare else [moment.strftime("%Y-%m-%d %H:%M:%S")]
            writer.writerow([*stamp, *(f"{level:.4f}" for level in levels)])
            moment += datetime.timedelta(minutes=minutes)


def names(folder: Path, *, name: str, count: int, first: int = 0, pattern: str = "{:05d}") -> None:
    """A list of numbered names, one a line, from `first` up to `count`."""
    file(folder, name=name, text="".join(pattern.format(number) + "\n" for number in range(first, count)))


def compressed_bytes(folder: Path, *, name: str, size: int) -> None:
    """A gzip file of letters."""
    text = sentence(random.Random(0), 20_000, 5000).encode()
    with gzip.open(folder / name, "wb", compresslevel=1) as out:
        out.write((text * (size // len(text) + 1))[:size])


RECIPES = (file, text, records, series, names, compressed_bytes)
