"""A grid of questions: every model with every card and every combination of settings."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vramcast.base.errors import UsageError
from vramcast.jobs.yaml_file import parse_yaml

MOST_QUESTIONS = 1_000_000
_KEYS = ("jobs", "gpus", "set", "steps")


@dataclass(frozen=True, slots=True)
class Question:
    """One prediction."""

    job: str
    gpu: str
    changes: Mapping[str, Any]
    """Dotted key → value, as --set takes them."""
    steps: int = 3

    @property
    def id(self) -> str:
        """The same for the same question, in whichever grid it stands."""
        text = json.dumps([self.job, self.gpu, dict(self.changes), self.steps], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Grid:
    jobs: tuple[str, ...]
    gpus: tuple[str, ...]
    settings: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    steps: int = 3

    def __len__(self) -> int:
        count = len(self.jobs) * len(self.gpus)
        for values in self.settings.values():
            count *= len(values)
        return count

    def __iter__(self) -> Iterator[Question]:
        for job, gpu, *values in itertools.product(self.jobs, self.gpus, *self.settings.values()):
            yield Question(job, gpu, dict(zip(self.settings, values, strict=True)), self.steps)


def read_grid(path: Path) -> Grid:
    """UsageError names the file, the key and what to write."""
    from vramcast.jobs.text_files import read_text

    data, _ = parse_yaml(read_text(path), str(path))
    if not isinstance(data, dict):
        raise UsageError(f"{path}: a grid has jobs, gpus and set; see docs/sweep.md")
    unknown = [key for key in data if key not in _KEYS]
    if unknown:
        raise UsageError(f"{path}: {unknown[0]}: there is no such key; a grid has {', '.join(_KEYS)}")
    settings = data.get("set") or {}
    if not isinstance(settings, dict):
        raise UsageError(f"{path}: set: write a key and a list of values, e.g. sizes.batch: [1, 2, 4]")
    steps = data.get("steps", 3)
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise UsageError(f"{path}: steps: a number of at least 1 is needed, not {steps!r}")
    grid = Grid(
        jobs=tuple(_near(path, name) for name in _texts(path, data, "jobs")),
        gpus=_texts(path, data, "gpus"),
        settings={str(key): _values(path, str(key), value) for key, value in settings.items()},
        steps=steps,
    )
    if len(grid) > MOST_QUESTIONS:
        raise UsageError(f"{path}: {len(grid):,} questions are too many; at most {MOST_QUESTIONS:,}")
    return grid


def _texts(path: Path, data: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = data.get(key)
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(each, str) and each for each in values):
        raise UsageError(f"{path}: {key}: a list of names is needed, e.g. {key}: [{_EXAMPLES[key]}]")
    return tuple(dict.fromkeys(values))


_EXAMPLES = {"jobs": "train.yaml, models/llama-8b", "gpus": "h100, rtx-4090"}


def _values(path: Path, key: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list):
        return (value,)
    if not value:
        raise UsageError(f"{path}: set.{key}: the list is empty")
    if len({json.dumps(each, sort_keys=True, default=str) for each in value}) < len(value):
        raise UsageError(f"{path}: set.{key}: a value stands there twice")
    return tuple(value)


def _near(path: Path, name: str) -> str:
    """A file is looked for beside the grid."""
    beside = path.parent / name
    return str(beside) if beside.exists() else name
