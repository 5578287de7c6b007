"""A model from a diffusers folder, or one part of a pipeline's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from vramcast.base.access import check_file
from vramcast.base.errors import UsageError
from vramcast.jobs.building import transformers_folder
from vramcast.jobs.building.allowed import check_arguments, parameters_of
from vramcast.jobs.building.built import Built, in_dtype
from vramcast.jobs.building.libraries import library, loading
from vramcast.jobs.folders import CONFIG, PIPELINE, check_sizes, merged, pipeline_parts, read_json, why_no_model
from vramcast.jobs.references import nearest
from vramcast.jobs.schema import Component


def find_class(component: Component) -> tuple[dict[str, Any], Any]:
    """The config of the folder, and the class that it is for; None: it is a transformers model."""
    folder = _folder(component)
    raw = merged(read_json(folder / CONFIG), component.config)
    check_sizes(raw, str(folder / CONFIG))
    name = component.class_name or raw.get("_class_name")
    if name is None:
        return raw, None
    diffusers = library("diffusers", folder)
    with loading():
        model_class = getattr(diffusers, name, None) if isinstance(name, str) and name.isidentifier() else None
        is_model = isinstance(model_class, type) and issubclass(model_class, diffusers.ModelMixin)
    if not is_model:
        raise UsageError(
            f"{folder / CONFIG}: _class_name: diffusers {diffusers.__version__} has no model {name!r}; a newer version "
            "may, or name a Python function that builds it (factory: package.module:function)"
        )
    return raw, model_class


def build(key: str, component: Component, dtype: torch.dtype) -> Built:
    """`key`: of the component, for messages."""
    raw, model_class = find_class(component)
    if model_class is None:  # text encoders in a pipeline are
        return transformers_folder.build(key, component, dtype)
    own = [name for name in parameters_of(model_class.__init__) if name != "self"]
    check_arguments(f"{key}.arguments", component.arguments, own, model_class.__name__)
    try:
        module = model_class.from_config({**raw, **component.arguments})
    except (TypeError, ValueError, KeyError) as error:
        where = _folder(component) / CONFIG
        raise UsageError(f"{where}: {model_class.__name__} cannot be built from it: {error}") from None
    return Built(module=in_dtype(module, dtype), config=dict(module.config), family="diffusers")


def _folder(component: Component) -> Path:
    root = Path(component.diffusers or "")
    folder = root / (component.subfolder or "")
    check_file(folder)
    if (folder / CONFIG).is_file():
        return folder
    if not root.is_dir():
        raise UsageError(f"no such folder: {root}")
    if (root / PIPELINE).is_file():
        parts = pipeline_parts(root)
        if component.subfolder is None:
            raise UsageError(f"{root} is a pipeline: say which part with subfolder: {', '.join(parts)}")
        raise UsageError(f"{root}: subfolder: no part {component.subfolder!r}{nearest(component.subfolder, parts)}")
    raise UsageError(why_no_model(folder) if folder.is_dir() else f"no such folder: {folder}")
