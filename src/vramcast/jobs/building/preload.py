"""Import what a job's models are made of before it is needed, so that processes forked later need not."""

from __future__ import annotations

import importlib
from contextlib import suppress

from vramcast.base.errors import UsageError
from vramcast.base.sealing import sealed
from vramcast.jobs.building import diffusers_folder, transformers_folder
from vramcast.jobs.building.libraries import library, loading
from vramcast.jobs.schema import Job


def preload(job: Job) -> None:
    """What cannot be imported is said where the component is built; code that a folder brings waits until then too."""
    for component in job.components.values():
        if component.trust_remote_code or component.source not in ("transformers", "diffusers", "timm", "torchvision"):
            continue
        with suppress(UsageError, ImportError), sealed():
            if component.source == "transformers":
                config, _ = transformers_folder.find_class(component)
                with loading():
                    importlib.import_module(type(config).__module__.replace(".configuration_", ".modeling_"))
            elif component.source == "diffusers":
                diffusers_folder.find_class(component)
            else:
                library(component.source, job.name)
            if component.mode == "lora":
                library("peft", job.name)
            if component.quantization != "none":
                library("bitsandbytes", job.name)
