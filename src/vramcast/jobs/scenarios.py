"""Variants of one job: what it calls scenarios itself, and the three that every job has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vramcast.base.errors import UsageError
from vramcast.jobs.references import nearest
from vramcast.jobs.schema import Job

USUAL: dict[str, dict[str, Any]] = {
    "inference": {"task": "inference"},
    "training": {"task": "training"},
    "offload": {"task": "training", "offload.activations": True, "offload.components": "model"},
}
"""Known for every job; one of its own with the same name comes first."""


def split_scenario(argument: str) -> tuple[str, str | None]:
    """ "vramcast.yaml#frozen" → the job, and the name of its scenario."""
    job, mark, name = argument.rpartition("#")
    return (job, name) if mark and job else (argument, None)


def changes_of(job: Job, name: str, where: str) -> dict[str, Any]:
    """Dotted key → value of scenario `name`."""
    changes = job.scenarios.get(name, USUAL.get(name))
    if changes is None:
        known = [*job.scenarios, *(usual for usual in USUAL if usual not in job.scenarios)]
        raise UsageError(f"{where}: there is no scenario {name!r}{nearest(name, known)}")
    return dict(_flat(changes, ""))


def _flat(changes: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in changes.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
