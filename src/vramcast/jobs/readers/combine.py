"""Several files that each say a part of a job, and the model that they are about, put together."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vramcast.base.errors import UsageError
from vramcast.jobs import hub_cache
from vramcast.jobs.code_places import code_in
from vramcast.jobs.folders import merged
from vramcast.jobs.readers import Part, Reading, Request, factory, model_folder, read, recognise
from vramcast.jobs.readers.code import typed_factory
from vramcast.jobs.validation import make_job


def read_together(argument: str | None, request: Request) -> Reading:
    """The job that `argument`, the further files and a script's flags describe together."""
    from vramcast.jobs.readers import hf_script

    parts = [_read_part(path, request) for path in (*((argument,) if argument else ()), *request.parts)]
    if request.arguments:
        parts.append(hf_script.part_from_words(list(request.arguments), Path(), "the flags", request))
    if not parts:
        raise UsageError("say what is trained: a vramcast.yaml, a model folder, a training config or a Python function")
    return complete(parts, request)


def complete(parts: Sequence[Part], request: Request) -> Reading:
    """The parts, in order, over the model that one of them or the request names."""
    whole = [part for part in parts if _has_model(part)]
    if len(whole) > 1:
        raise UsageError(f"{whole[0].where} and {whole[1].where} each describe a model: leave one out")
    rest = [part for part in parts if not _has_model(part)]
    base = whole[0] if whole else model_part(_named_model(parts, request), request)
    ordered = [_as_said(base) if rest else base, *rest]
    data: dict[str, Any] = {}
    for part in ordered:
        data = merge(data, part.data)
    for part in ordered:
        data = part.finish(data) if part.finish else data
    keys_of_parts = [set(_dotted(part.data)) for part in ordered]
    return Reading(
        job=make_job(data, " + ".join(dict.fromkeys(part.where for part in ordered))),
        recognised_as=" + ".join(dict.fromkeys(part.recognised_as for part in ordered)),
        notes=tuple(note for part in ordered for note in part.notes),
        assumed={
            key: text
            for i, part in enumerate(ordered)
            for key, text in part.assumed.items()
            if not any(_says(later, key) for later in keys_of_parts[i + 1 :])
        },
        unsupported={key: text for part in ordered for key, text in part.unsupported.items()},
        folders=tuple(folder for part in ordered for folder in part.folders),
    )


def _as_said(folder: Part) -> Part:
    """A model folder alone is assumed to be trained in bf16; a training config that says nothing of it means fp32."""
    if "precision" not in folder.assumed:
        return folder
    return dataclasses.replace(
        folder,
        data={key: value for key, value in folder.data.items() if key != "precision"},
        assumed={key: text for key, text in folder.assumed.items() if key != "precision"},
    )


def merge(data: dict[str, Any], more: Any) -> dict[str, Any]:
    """`more` over `data`; the batch of one GPU and that of all replace each other."""
    result = merged(data, dict(more))
    new_sizes, new_gpus = more.get("sizes") or {}, more.get("gpus") or {}
    if "batch" in new_sizes and isinstance(result.get("gpus"), dict) and "global_batch" not in new_gpus:
        result["gpus"] = {key: value for key, value in result["gpus"].items() if key != "global_batch"}
    if "global_batch" in new_gpus and isinstance(result.get("sizes"), dict) and "batch" not in new_sizes:
        result["sizes"] = {key: value for key, value in result["sizes"].items() if key != "batch"}
    return result


def model_part(model: str, request: Request) -> Part:
    """A model folder, or a Python function that returns the network."""
    if not os.path.exists(model) and factory.is_factory(model):
        component = {"factory": typed_factory(model, Path(), request.gate)}
        return Part(data={"components": {"model": component}}, recognised_as="Python function", where=model)
    folder = hub_cache.folder_of(model)
    return _as_part(model_folder.read(Path(folder), request), model)


def _read_part(argument: str, request: Request) -> Part:
    path = hub_cache.cached_folder(argument) or Path(argument)
    if not os.path.exists(path) and factory.is_factory(argument):
        reading = factory.read_factory(argument)
        request.gate.typed(*code_in(reading.job))
        return _as_part(reading, argument)
    reader: Any = recognise(path)
    if hasattr(reader, "read_part"):
        part: Part = reader.read_part(path, request)
        return part
    return _as_part(read(path, request), argument)


def _as_part(reading: Reading, where: str) -> Part:
    return Part(
        data=reading.job.model_dump(exclude_unset=True),
        recognised_as=reading.recognised_as,
        where=where,
        notes=reading.notes,
        assumed=reading.assumed,
        unsupported=reading.unsupported,
        folders=reading.folders,
    )


def _named_model(parts: Sequence[Part], request: Request) -> str:
    named = [request.model, *(part.model for part in parts)]
    model = next((name for name in named if name), None)
    if model is None:
        where = parts[0].where
        if request.arguments:
            raise UsageError(
                f"{where}: a command that says how, but not what is trained: name the model with --model FOLDER; or "
                "put `vramcast run` before the command, which predicts the script itself"
            )
        raise UsageError(
            f"{where}: {parts[0].recognised_as} says how, but not what is trained: name the model with --model FOLDER, "
            f"or the other way round: vramcast predict FOLDER --with {where}"
        )
    return model


def _has_model(part: Part) -> bool:
    """A part that only changes the model (LoRA) has no source for it."""
    from vramcast.jobs.schema import SOURCES

    components = part.data.get("components")
    if not isinstance(components, dict):
        return "step" in part.data
    return any(
        isinstance(component, dict) and any(component.get(source) for source in SOURCES)
        for component in components.values()
    )


def _dotted(data: Any, prefix: str = "") -> list[str]:
    if not isinstance(data, dict):
        return [prefix]
    return [name for key, value in data.items() for name in _dotted(value, f"{prefix}.{key}" if prefix else str(key))]


def _says(keys: set[str], key: str) -> bool:
    return any(known == key or known.startswith(f"{key}.") for known in keys)
