"""From what somebody typed (a file, a folder, "package.module:function") to a job, with their changes put in."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vramcast.base.errors import CannotPredict, UsageError
from vramcast.jobs.code_places import code_in
from vramcast.jobs.hub_cache import cached_folder
from vramcast.jobs.readers import Request, combine, factory, read
from vramcast.jobs.readers.code import search_in
from vramcast.jobs.references import nearest
from vramcast.jobs.scenarios import changes_of, split_scenario
from vramcast.jobs.schema import Job
from vramcast.jobs.schema.component import SOURCES
from vramcast.jobs.validation import make_job
from vramcast.trace import Note

Overrides = Mapping[str, Any]
"""Dotted key → value: {"sizes.batch": 4, "components.model.mode": "frozen"}."""


FLAGS = "the flags"
"""`where` of a job that was read from a command alone."""
_OF_A_STRATEGY = ("zero_stage", "zero", "offload_optimizer", "offload_parameters", "wrap", "reshard_after_forward")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedJob:
    job: Job
    recognised_as: str = ""
    """For the report: "transformers folder (LlamaForCausalLM)", "vramcast.yaml"."""
    notes: tuple[Note, ...] = ()
    where: str = ""
    """What the user named; messages begin with it."""
    overrides: Overrides = field(default_factory=dict)
    """What the user changed in it."""
    request: Request = field(default_factory=Request)


def load_job(argument: str | None, overrides: Overrides | None = None, request: Request | None = None) -> LoadedJob:
    """Read `argument` and what the request adds to it, and apply `overrides`; UsageError says which file and key is
    wrong, and what to write. `argument` may be None when the request has a script's arguments."""
    request = request or Request()
    overrides = overrides or {}
    if argument is not None and not os.path.exists(argument):
        name, scenario = split_scenario(argument)
        if scenario is not None:
            return load_scenario(load_job(name, overrides, request), scenario)
    if argument is None or request.parts or request.arguments:
        reading = combine.read_together(argument, request)
        argument = argument or FLAGS
    elif not os.path.exists(argument) and factory.is_factory(argument):
        reading = factory.read_factory(argument)
        request.gate.typed(*code_in(reading.job))
    else:
        reading = read(cached_folder(argument) or Path(argument), request)
    for key, text in reading.unsupported.items():
        if not any(overridden.startswith(key) for overridden in overrides):
            raise CannotPredict(f"{argument}: {text}")
    job = with_overrides(reading.job, overrides)
    _pass_gate(job, reading.job, argument, request)
    if any(place.key.endswith("factory") and not request.gate.was_typed(place) for place in code_in(job)):
        search_in(*reading.folders)
    kept = [
        text for key, text in reading.assumed.items() if not any(overridden.startswith(key) for overridden in overrides)
    ]
    assumed = (Note("assumed", "; ".join(kept)),) if kept else ()
    return LoadedJob(
        job=job,
        recognised_as=reading.recognised_as,
        notes=(*assumed, *reading.notes),
        where=argument,
        overrides=overrides,
        request=request,
    )


def load_kind(
    name: str,
    sizes: Mapping[str, int],
    width: int | None = None,
    layers: int | None = None,
    overrides: Overrides | None = None,
    request: Request | None = None,
) -> LoadedJob:
    """A plain network of a well-known kind, as a job."""
    from vramcast.jobs.networks.kinds import job_of, named

    kind = named(name)
    request = request or Request()
    job = with_overrides(make_job(job_of(name, sizes, width, layers), f"--arch {name}"), overrides or {})
    request.gate.typed(*code_in(job))
    said = job.components["model"].arguments
    text = f"a plain {name}: {said['layers']} {kind.of}, {said['width']} channels; yours may differ"
    return LoadedJob(job=job, recognised_as=f"plain {name}", notes=(Note("assumed", text),), request=request)


def _pass_gate(job: Job, in_file: Job, where: str, request: Request) -> None:
    """What the file says must be allowed; what the overrides say was typed."""
    of_file = code_in(in_file, where)
    request.gate.typed(*(place for place in code_in(job, where) if place not in of_file))
    if request.trust_remote_code:
        request.gate.typed(*(place for place in of_file if place.key.endswith(".trust_remote_code")))
    request.gate.check(*code_in(job, where))


def load_scenario(loaded: LoadedJob, name: str) -> LoadedJob:
    """A variant of the job: one of its own, or `inference`, `training`, `offload`."""
    changes = changes_of(loaded.job, name, loaded.where or loaded.job.name)
    scenario = variant(loaded, name, changes)
    loaded.request.gate.check(*code_in(scenario.job, f"{loaded.where}: scenarios.{name}"))
    return scenario


def variant(loaded: LoadedJob, name: str, changes: Overrides) -> LoadedJob:
    """The job with `changes`, called `name`, without scenarios of its own."""
    place = f"{loaded.where}: scenario {name}" if loaded.where else f"scenario {name}"
    job = with_overrides(loaded.job, {**changes, "scenarios": {}}, place)
    where = f"{loaded.where}#{name}"
    return dataclasses.replace(loaded, job=job.model_copy(update={"name": f"{job.name}#{name}"}), where=where)


def with_overrides(job: Job, overrides: Overrides, where: str = "the options") -> Job:
    """The job with single values replaced, and checked again as a whole."""
    if not overrides:
        return job
    data = job.model_dump(exclude_unset=True)
    _check_components(job, overrides)
    for key, value in overrides.items():
        _put(data, key, value)
    if "gpus.strategy" in overrides and isinstance(data.get("gpus"), dict):
        for name in _OF_A_STRATEGY:  # another strategy has its own
            if f"gpus.{name}" not in overrides:
                data["gpus"].pop(name, None)
    if "sizes.batch" in overrides and isinstance(data.get("gpus"), dict):
        data["gpus"].pop("global_batch", None)  # the batch of one GPU is said anew
    return make_job(data, where)


def _check_components(job: Job, overrides: Overrides) -> None:
    """A component that is not there is a mistake, unless the options say what it is."""
    for key in overrides:
        section, _, rest = key.partition(".")
        name, _, field = rest.partition(".")
        if section != "components" or not field or not job.components or name in job.components:
            continue
        if not any(f"components.{name}.{source}" in overrides for source in SOURCES):
            raise UsageError(f"--set {key}: there is no component {name!r}{nearest(name, job.components)}")


def _put(data: dict[str, Any], key: str, value: Any) -> None:
    parts = key.split(".")
    if not all(re.fullmatch(r"[\w-]+", part) for part in parts):
        raise UsageError(f"--set {key}: a key is names with dots between, e.g. components.model.mode=frozen")
    place: Any = data
    for i, part in enumerate(parts):
        if isinstance(place, list):
            is_number = part.isdecimal() and len(part) < 10
            index = int(part) if is_number else 0
            if not index < len(place):
                raise UsageError(f"--set {key}: there is no number {part} in {'.'.join(parts[:i])}")
            if is_number:
                if i == len(parts) - 1:
                    place[index] = value
                    return
                place = place[index]
                continue
            place = place[index]
        if not isinstance(place, dict):
            raise UsageError(f"--set {key}: {'.'.join(parts[:i])} is a single value and has no {part!r}")
        if i == len(parts) - 1:
            place[part] = value
        else:
            if place.get(part) is None:
                place[part] = {}
            place = place[part]
