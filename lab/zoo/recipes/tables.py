"""Arrays, ratings and records by the names and shapes that a script looks for."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from lab.zoo.recipes.files import file, sentence, word

_AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"


def arrays(
    folder: Path, *, name: str, parts: dict[str, list[int]] | None = None, shape: list[int] | None = None,
    levels: int | None = None, kind: str = "int64", count: int | None = None,
) -> None:  # fmt: skip
    """One array (`shape`) or named ones (`parts`) as .npy, .npz, .h5 or .mat: normal numbers, or integers below
    `levels`. With `count`, that many files, whose name has a place for the number."""
    for number in range(1 if count is None else count):
        draw = np.random.default_rng(number)
        made = {part: _numbers(draw, extents, levels, kind) for part, extents in (parts or {"": shape or []}).items()}
        path = folder / name.format(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".npy":
            np.save(path, made[""])
        elif path.suffix == ".npz":
            np.savez(path, **made)
        elif path.suffix == ".mat":
            from scipy.io import savemat

            savemat(path, made)
        else:
            import h5py

            with h5py.File(path, "w") as out:
                for part, values in made.items():
                    out[part] = values


def _numbers(draw: np.random.Generator, shape: list[int], levels: int | None, kind: str) -> np.ndarray:
    if levels is None:
        return draw.standard_normal(shape).astype(np.float32)
    return draw.integers(0, levels, shape).astype(kind)


def ratings(
    folder: Path, *, name: str, users: int, items: int, per_user: int = 20, separator: str = "::",
    order: str = "user item rating time", head: str = "",
) -> None:  # fmt: skip
    """Who rated what, and when: a line each; every user and, where there are enough lines, every item occurs."""
    draw = np.random.default_rng(0)
    lines = [head + "\n"] if head else []
    for user in range(users):
        for number in range(per_user):
            taken = (user * per_user + number) % items
            values = {
                "user": user + 1, "item": taken + 1, "rating": int(draw.integers(1, 6)),
                "time": 978_300_000 + 60 * number,
            }  # fmt: skip
            lines.append(separator.join(str(values[column]) for column in order.split()) + "\n")
    file(folder, name=name, text="".join(lines))


def labelled_text(folder: Path, *, names: list[str], lines: int = 2000, words: int = 8, classes: int = 10) -> None:
    """A sentence and the number of its class on each line, with a tab between them."""
    import random

    for number, name in enumerate(names):
        draw = random.Random(number)
        rows = (f"{sentence(draw, words, 5000)}\t{index % classes}\n" for index in range(lines))
        file(folder, name=name, text="".join(rows))


def vocabulary(folder: Path, *, name: str, count: int, marks: list[str]) -> None:
    """A pickled dictionary from made-up words, then `marks`, to their numbers."""
    words = [word(number) for number in range(count - len(marks))] + marks
    _pickled(folder / name, {entry: number for number, entry in enumerate(words)})


def clip_merges(folder: Path, *, name: str, count: int = 48894) -> None:
    """The merges of CLIP's tokenizer, compressed: as many, of made-up words."""
    import gzip

    folder.mkdir(parents=True, exist_ok=True)
    lines = ["#version: 0.2\n", *(f"{word(number)} {word(number + 1)}\n" for number in range(count))]
    (folder / name).write_bytes(gzip.compress("".join(lines).encode(), mtime=0))


def _pickled(path: Path, document: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(document))


def proteins(folder: Path, *, name: str, splits: str, count: int = 300, longest: int = 300) -> None:
    """Chains of amino acids with the places of their backbone's atoms, and which of them are trained on."""
    draw = np.random.default_rng(0)
    lines = []
    for number in range(count):
        length = int(draw.integers(50, longest))
        backbone = np.cumsum(draw.normal(size=(length, 3)), axis=0)
        coordinates = {
            atom: (backbone + draw.normal(size=(length, 3))).round(3).tolist() for atom in ("N", "CA", "C", "O")
        }
        letters = "".join(_AMINO_ACIDS[kind] for kind in draw.integers(0, len(_AMINO_ACIDS), length))
        lines.append(json.dumps({"name": f"chain{number}", "seq": letters, "coords": coordinates}) + "\n")
    file(folder, name=name, text="".join(lines))
    names = [f"chain{number}" for number in range(count)]
    tenth = count // 10
    parts = {"train": names[2 * tenth :], "validation": names[:tenth], "test": names[tenth : 2 * tenth]}
    file(folder, name=splits, document=parts)


def token_pairs(folder: Path, *, names: list[str], count: int = 400, vocabulary: int = 50257) -> None:
    """A context and its completion as tokens, one JSON object a line."""
    for number, name in enumerate(names):
        draw = np.random.default_rng(number)
        rows = (
            {
                "context": draw.integers(0, vocabulary, draw.integers(20, 60)).tolist(),
                "completion": draw.integers(0, vocabulary, draw.integers(10, 40)).tolist(),
            }
            for _ in range(count)
        )
        file(folder, name=name, text="".join(json.dumps(row) + "\n" for row in rows))


def captions(folder: Path, *, splits: list[str], count: int = 64, words: int = 2000, length: int = 20) -> None:
    """Captions of pictures as numbers of words, beside the paths of the pictures, and the numbers of all words."""
    from lab.zoo.recipes.images import pictures

    marks = ["<start>", "<eos>", "<unk>", "<pad>"]
    names = [*marks, *(word(number) for number in range(words))]
    file(folder, name="word_dict.json", document={name: number for number, name in enumerate(names)})
    for number, split in enumerate(splits):
        draw = np.random.default_rng(number)
        pictures(folder / split, count=count, seed=1000 * number)
        paths = [str(folder / split / f"{index:05d}.jpg") for index in range(count)]
        drawn = [[0, *draw.integers(len(marks), len(names), length).tolist(), 1] for _ in range(count)]
        file(folder, name=f"{split}_img_paths.json", document=paths)
        file(folder, name=f"{split}_captions.json", document=drawn)


def yandex_table(folder: Path, *, name: str, rows: int, numbers: int, categories: int, classes: int) -> None:
    """A table of the benchmark of FT-Transformer: a zip file of numbers, categories and labels of each split."""
    import io
    import zipfile

    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}.zip", "w") as out:
        for number, split in enumerate(("train", "val", "test")):
            draw = np.random.default_rng(number)
            count = rows if number == 0 else rows // 5
            words = np.array([f"kind{kind}" for kind in range(10)], dtype=object)
            parts = {
                "N": draw.standard_normal((count, numbers)).astype(np.float32),
                "C": words[draw.integers(0, len(words), (count, categories))],
                "y": np.arange(count) % classes,
            }  # fmt: skip
            for part, values in parts.items():
                if values.size:
                    content = io.BytesIO()
                    np.save(content, values, allow_pickle=True)
                    out.writestr(f"{name}/{part}_{split}.npy", content.getvalue())


RECIPES = (
    arrays, captions, clip_merges, labelled_text, proteins, ratings, token_pairs, vocabulary, yandex_table,
)  # fmt: skip
