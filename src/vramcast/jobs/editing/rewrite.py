"""Say changes of a job in the user's own files, read the result back, and keep what means exactly the job wanted.

Changes are said aspect by aspect. One is kept if the files with it, and with what is not said yet put on top, give the
job that was wanted; the others are left to be said beside the files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vramcast.base.errors import VramcastError
from vramcast.jobs.editing.sources import CANNOT_EDIT, Source, sources_of, with_words
from vramcast.jobs.equality import same_run
from vramcast.jobs.load import FLAGS, LoadedJob, load_job, with_overrides
from vramcast.jobs.readers import Edits
from vramcast.jobs.schema import Job
from vramcast.jobs.text_files import reading_instead

_ASPECTS = {
    "sizes.batch": "batch",
    "gpus.global_batch": "batch",
    "sizes.height": "resolution",
    "sizes.width": "resolution",
    "sizes.depth": "resolution",
    "sizes.sequence": "sequence",
    "sizes.frames": "frames",
    "gpus.gradient_as_bucket_view": "buckets",
}
"""Dotted key → what it is about; other keys are about their first name."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The user's files with the changes in them; nothing is written."""

    texts: Mapping[Path, str] = field(default_factory=dict)
    """The files that change."""
    arguments: tuple[str, ...] = ()
    """The command after `--`, changed or not."""
    beside: Mapping[str, Any] = field(default_factory=dict)
    """Dotted key → value: what none of them can say."""
    changed_arguments: bool = False

    @property
    def says_something(self) -> bool:
        return bool(self.texts) or self.changed_arguments


def rewrite(loaded: LoadedJob, changes: Mapping[str, Any]) -> Rewritten:
    """The files of `loaded` with its own overrides and `changes` in them."""
    job = with_overrides(loaded.job, changes)
    left = {**loaded.overrides, **changes}
    state = _State(loaded, job, {}, loaded.request.arguments, left)
    try:
        sources = sources_of(loaded)
    except CANNOT_EDIT:
        sources = []
    if not sources or not left:
        return Rewritten(arguments=state.arguments, beside=left)
    for aspect in dict.fromkeys(_aspect(key) for key in left):
        state = state.with_aspect(aspect, sources) or state
    return Rewritten(
        texts=state.texts,
        arguments=state.arguments,
        beside=state.pruned(),
        changed_arguments=state.arguments != loaded.request.arguments,
    )


@dataclass(frozen=True, slots=True)
class _State:
    loaded: LoadedJob
    job: Job
    """The job as it should be."""
    texts: Mapping[Path, str]
    arguments: tuple[str, ...]
    left: Mapping[str, Any]
    """What is not said yet."""

    def with_aspect(self, aspect: str, sources: list[Source]) -> _State | None:
        """This state with one more aspect written into every file that sets it already, or else into the first that
        can."""
        about = {key: value for key, value in self.left.items() if _aspect(key) == aspect}
        left = {key: value for key, value in self.left.items() if key not in about}
        with reading_instead(self.texts):
            try:
                now = with_words(sources, self.arguments)
                possible = [(source, edits) for source in now if (edits := source.edits(aspect, about, self.job))]
                already_there = [(source, edits) for source, edits in possible if source.says(edits)]
                texts, arguments = dict(self.texts), self.arguments
                for source, edits in already_there or [pair for pair in possible if pair[0].own][:1]:
                    texts, arguments = _changed(source, edits, texts, arguments)
            except CANNOT_EDIT:
                return None
        if (texts, arguments) == (self.texts, self.arguments):
            return None
        state = dataclasses.replace(self, texts=texts, arguments=arguments, left=left)
        return state if state.means_the_job(left) else None

    def means_the_job(self, overrides: Mapping[str, Any]) -> bool:
        request = dataclasses.replace(self.loaded.request, arguments=self.arguments)
        where = None if self.loaded.where == FLAGS else self.loaded.where
        try:
            with reading_instead(self.texts):
                return same_run(load_job(where, overrides, request).job, self.job)
        except VramcastError:
            return False

    def pruned(self) -> dict[str, Any]:
        """The changes left that make a difference."""
        kept = dict(self.left)
        for key in self.left:
            without = {other: value for other, value in kept.items() if other != key}
            if self.means_the_job(without):
                kept = without
        return kept


def _changed(
    source: Source, edits: Edits, texts: dict[Path, str], arguments: tuple[str, ...]
) -> tuple[dict[Path, str], tuple[str, ...]]:
    changed = source.changed(edits)
    if source.path is None:
        return texts, tuple(changed)
    return {**texts, source.path: str(changed)}, arguments


def _aspect(key: str) -> str:
    return _ASPECTS.get(key, key.partition(".")[0])
