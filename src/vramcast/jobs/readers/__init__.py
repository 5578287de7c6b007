"""Readers turn what people have (a file, a folder, a function) into a Job, and say what they recognised.

A reader is a module of this package with three things:

    NAME = "KAIR option file"                             # what the report calls it
    def recognises(path: Path) -> bool                    # cheap, never raises, looks at nothing but `path`
    def read(path: Path, request: Request) -> Reading     # UsageError names the file, the key and the cure

Put its name into READERS; the first that recognises a path reads it. None of them imports torch.

A config that describes only a part of a job (accelerate, DeepSpeed, TrainingArguments) has `read_part` too; combine.py
puts parts and a model together.

A reader may also say changes in its own format, from the tables that it reads with:

    def edits(keys: Keys, aspect: str, job: Job) -> Edits    # the keys that say it of `job`; {}: there are none

editing/rewrite.py has the aspects, changes the text, and reads it back.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from vramcast.base.access import CodeGate
from vramcast.base.errors import UsageError
from vramcast.jobs.hub_cache import folder_of, is_hub_id
from vramcast.jobs.readers.documents import check_not_empty, check_readable
from vramcast.jobs.schema import Job
from vramcast.jobs.yaml_file import Key
from vramcast.trace import Note

READERS: tuple[str, ...] = (
    "vramcast_yaml",
    "axolotl",
    "kair",
    "kohya",
    "nnunet",
    "ultralytics",
    "megatron",
    "torchtitan",
    "torchtune",
    "other_tools",
    "deepspeed",
    "accelerate",
    "lightning",
    "diffsr",
    "unsloth",
    "ms_swift",
    "llama_factory",
    "trl",
    "hf_arguments",
    "hf_script",
    "model_folder",
)
"""In the order in which they are asked: the more particular first."""


Edits = dict[Key, Any]
"""Key of a config, from its root → its new value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the user said beside the path."""

    model: str | None = None
    """A model folder, or package.module:function, for configs that describe the training but not the model."""
    trust_remote_code: bool = False
    parts: tuple[str, ...] = ()
    """Further files, each of which says a part of the job; a later one wins."""
    arguments: tuple[str, ...] = ()
    """The command line of a Hugging Face training script, or its flags alone."""
    gate: CodeGate = field(default_factory=CodeGate, compare=False, repr=False)
    """What code that a file names has to pass before it is imported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A job, where it came from, and what the reader must tell: keys it does not use, values it assumed."""

    job: Job
    recognised_as: str
    notes: tuple[Note, ...] = ()
    assumed: Mapping[str, str] = field(default_factory=dict)
    """What the reader chose itself: dotted key of the job → words for it. Told unless the user says the key."""
    unsupported: Mapping[str, str] = field(default_factory=dict)
    """What the config asks for and no job can say: dotted key → words for it. Exit 3 unless the user says the key."""
    folders: tuple[Path, ...] = ()
    """Where modules may lie that it names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one file says of a job."""

    data: Mapping[str, Any]
    """As make_job takes it; sections are written out (precision: {preset: ...}), so that parts can be merged."""
    recognised_as: str
    where: str
    notes: tuple[Note, ...] = ()
    assumed: Mapping[str, str] = field(default_factory=dict)
    unsupported: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[Path, ...] = ()
    model: str | None = None
    """The model folder that it names."""
    finish: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    """What can be said only when all parts are together."""


class Reader(Protocol):
    NAME: str

    @staticmethod
    def recognises(path: Path) -> bool: ...

    @staticmethod
    def read(path: Path, request: Request) -> Reading: ...


def readers() -> Iterator[Reader]:
    for name in READERS:
        yield cast(Any, importlib.import_module(f"vramcast.jobs.readers.{name}"))


def recognise(path: Path) -> Reader | None:
    """The reader for this path, or None."""
    return next((reader for reader in readers() if reader.recognises(path)), None)


def read(path: Path, request: Request | None = None) -> Reading:
    """The job that a file or folder describes."""
    if not os.path.exists(path):
        if is_hub_id(str(path)):
            folder_of(str(path))
        raise UsageError(f"no such file or folder: {path}")
    reader = recognise(path)
    if reader is None and path.suffix == ".py":
        raise UsageError(
            f"{path} is a script: `vramcast run {path}` predicts it as it is; or name a function in it that returns a "
            f"job ({path}:job)"
        )
    if reader is None:
        check_readable(path)
        check_not_empty(path)
        importlib.import_module("vramcast.jobs.readers.other_tools").check_trains(path)
        raise UsageError(
            f"{path}: not recognised as a config of a tool that is read (docs/readers.md lists them). Put `vramcast "
            "run` before the command that trains with it; or `vramcast init` writes a vramcast.yaml to begin with"
        )
    return reader.read(path, request or Request())
