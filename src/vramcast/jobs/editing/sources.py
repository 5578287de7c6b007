"""The texts that a job was read from, each of which can say some changes in its own format."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from vramcast.base.errors import VramcastError
from vramcast.jobs.editing.documents import edit_document
from vramcast.jobs.editing.shell_text import SWITCH_OFF, SWITCH_ON, edit_script, edit_words
from vramcast.jobs.load import LoadedJob
from vramcast.jobs.readers import Edits, deepspeed, hf_edits, hf_script, recognise, vramcast_yaml
from vramcast.jobs.readers.command_line import parse_command, split_environment
from vramcast.jobs.readers.documents import beside, read_document
from vramcast.jobs.readers.keys import Keys
from vramcast.jobs.schema import Job
from vramcast.jobs.text_files import read_text

ALLOCATOR = "allocator_conf"
CANNOT_EDIT = (VramcastError, yaml.YAMLError, StopIteration, KeyError)
"""What an edit that was too simple for the text may end with."""


@dataclass(frozen=True, slots=True)
class DocumentSource:
    """JSON, YAML or TOML."""

    path: Path
    reader: Any
    own: bool
    """Whoever trains reads it; a part that only vramcast reads is changed no further than what it says."""

    def edits(self, aspect: str, changes: Mapping[str, Any], job: Job) -> Edits:
        if self.reader is vramcast_yaml:
            return vramcast_yaml.section_edits(self._keys(), changes, job)
        edits: Edits = self.reader.edits(self._keys(), aspect, job)
        return edits

    def says(self, edits: Edits) -> bool:
        keys = self._keys()
        return any(keys.says(key) for key in edits)

    def changed(self, edits: Edits) -> str:
        return edit_document(read_text(self.path), self.path, edits)

    def _keys(self) -> Keys:
        absent = deepspeed.ABSENT if self.reader is deepspeed else ()
        return Keys.of(read_document(self.path), str(self.path), absent)


@dataclass(frozen=True, slots=True)
class ScriptSource:
    """A shell script that starts a training."""

    path: Path
    own: bool = True

    def edits(self, aspect: str, changes: Mapping[str, Any], job: Job) -> Edits:
        return _of_command(hf_script.training_command(read_text(self.path), str(self.path)).words, aspect, job)

    def says(self, edits: Edits) -> bool:
        command = hf_script.training_command(read_text(self.path), str(self.path))
        return _command_says(command.words, command.environment, edits)

    def changed(self, edits: Edits) -> str:
        text = read_text(self.path)
        flags, environment = _split(edits)
        anchors = tuple(mark.removeprefix("--") for mark in hf_script.MARKS)
        return edit_script(text, hf_script.training_command(text, str(self.path)), flags, environment, anchors)


@dataclass(frozen=True, slots=True)
class WordsSource:
    """A training command, or its flags, after `--`."""

    words: tuple[str, ...]
    path: None = None
    own: bool = True

    def edits(self, aspect: str, changes: Mapping[str, Any], job: Job) -> Edits:
        return _of_command(list(self.words), aspect, job)

    def says(self, edits: Edits) -> bool:
        return _command_says(list(self.words), {}, edits)

    def changed(self, edits: Edits) -> list[str]:
        return edit_words(list(self.words), *_split(edits))


Source = DocumentSource | ScriptSource | WordsSource


def sources_of(loaded: LoadedJob) -> list[Source]:
    """Every text that has a part in the job, in the order in which they are read."""
    request = loaded.request
    sources: list[Source] = []
    for name in (*((loaded.where,) if loaded.where else ()), *request.parts):
        for source in _of_path(Path(name), own=name == loaded.where):
            if all(source.path != other.path for other in sources):
                sources.append(source)
    if request.arguments:
        sources += [*_beside_command(list(request.arguments), Path()), WordsSource(request.arguments)]
    return sources


def steps_key(loaded: LoadedJob) -> str:
    """What the user's format calls the number of optimizer steps; empty where it has no word for it."""
    try:
        sources = sources_of(loaded)
    except CANNOT_EDIT:
        return ""
    of_command = any(not isinstance(source, DocumentSource) for source in sources)
    if of_command:
        return f"--{hf_edits.STEPS}"
    named = [getattr(source.reader, "STEPS", "") for source in sources if isinstance(source, DocumentSource)]
    return next((name for name in named if name), "")


def with_words(sources: list[Source], words: tuple[str, ...]) -> list[Source]:
    """The same after the command was changed."""
    return [WordsSource(words) if source.path is None else source for source in sources]


def _of_path(path: Path, *, own: bool) -> Iterator[Source]:
    reader: Any = recognise(path) if os.path.exists(path) else None
    if reader is hf_script:
        yield from _beside_command(hf_script.training_command(read_text(path), str(path)).words, path.parent)
        yield ScriptSource(path)
    elif reader is vramcast_yaml:
        yield DocumentSource(vramcast_yaml.file_of(path), reader, own)
    elif hasattr(_editor(reader), "edits"):
        source = DocumentSource(path, _editor(reader), own=True)
        yield from _named_by(source._keys(), source.reader, path.parent)
        yield source


def _editor(reader: Any) -> Any:
    """TrainingArguments are read in one module and said in another."""
    return hf_edits if getattr(reader, "NAME", None) == "Hugging Face TrainingArguments" else reader


def _named_by(keys: Keys, reader: Any, folder: Path) -> Iterator[Source]:
    for file in reader.nested_files(keys, folder) if hasattr(reader, "nested_files") else ():
        if os.path.isfile(file):
            yield DocumentSource(file, _editor(recognise(file)) or deepspeed, own=True)


def _beside_command(words: list[str], folder: Path) -> Iterator[Source]:
    command = parse_command(split_environment(words)[1], "the command")
    file = command.launcher_flags.get("config_file")
    if command.launcher == "accelerate" and isinstance(file, str):
        yield from _of_path(beside(file, folder), own=True)
    yield from _named_by(Keys(command.flags, "the command"), hf_edits, folder)


def _of_command(words: list[str], aspect: str, job: Job) -> Edits:
    command = parse_command(split_environment(words)[1], "the command")
    if aspect == ALLOCATOR:
        known = command.script and job.allocator_conf  # flags alone have no place for a variable
        return {("environment", hf_script.ALLOCATOR_VARIABLES[-1]): job.allocator_conf} if known else {}
    if aspect == "gpus":
        name = next((name for name in hf_script.PROCESSES if type(command.launcher_flags.get(name)) is int), None)
        return {("launcher", name): job.gpus.count} if name else {}
    keys = Keys(command.flags, "the command")
    reader = hf_script.reader_of_images(command)
    if reader is None:
        return hf_edits.edits(keys, aspect, job)
    return {key: _as_switch(value) for key, value in reader.edits(keys, aspect, job).items()}


def _as_switch(value: Any) -> Any:
    """The scripts for images have switches that take no value; the Trainer's take one."""
    return SWITCH_ON if value is True else SWITCH_OFF if value is False else value


def _command_says(words: list[str], environment: Mapping[str, str], edits: Edits) -> bool:
    variables, rest = split_environment(words)
    command = parse_command(rest, "the command")
    known = {**command.launcher_flags, **command.flags, **environment, **variables}
    return any(key[-1] in known for key in edits)


def _split(edits: Edits) -> tuple[dict[str, Any], dict[str, str]]:
    """Flags (of the script, or of what starts it), and variables of the environment."""
    environment = {str(key[1]): str(value) for key, value in edits.items() if key[0] == "environment"}
    flags = {
        key[-1:] if key[0] == "launcher" else key: value for key, value in edits.items() if key[0] != "environment"
    }
    return hf_edits.as_flags(flags), environment
