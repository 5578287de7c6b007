"""A model folder of transformers or diffusers: trained whole, under bf16 autocast, with AdamW, unless options say so.

Only JSON files are read, and no weights.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from vramcast.base.errors import UsageError
from vramcast.jobs.folders import CONFIG, PIPELINE, folder_kind, pipeline_parts, read_json, why_no_model
from vramcast.jobs.hub_cache import name_of
from vramcast.jobs.readers import Reading, Request
from vramcast.jobs.safetensors_headers import stored_weights
from vramcast.jobs.validation import make_job
from vramcast.trace import Note

NAME = "model folder (transformers or diffusers)"

_DENOISERS = ("transformer", "unet", "prior")
_NOT_NETWORKS = ("safety_checker", "feature_extractor", "image_processor")
_ASSUMED = {
    "precision": "fp32 weights under bf16 autocast (--precision)",
    "optimizer": "AdamW (--optimizer)",
}


def recognises(path: Path) -> bool:
    """Any folder, so that the message about one without a config is this reader's."""
    return os.path.isdir(path) or path.name in (CONFIG, PIPELINE)


def read(path: Path, request: Request) -> Reading:
    folder = path if os.path.isdir(path) else path.parent
    kind = folder_kind(folder)
    if kind is None:
        raise UsageError(why_no_model(folder))
    name = name_of(folder)
    notes: list[Note] = []
    assumed = {"components": "all weights are trained (--set components.model.mode=lora)", **_ASSUMED}
    if kind == "pipeline":
        components, recognised = _pipeline(folder, notes)
        main = list(components)[-1]
        assumed["components"] = f"all weights of {main} are trained (--set components.{main}.mode=lora)"
    else:
        source: dict[str, Any] = {kind: str(folder)}
        if request.trust_remote_code:
            source["trust_remote_code"] = True
        components = {"model": source}
        stored = stored_weights(folder)
        if stored is not None:
            text = (
                f"{stored.count:,} parameters in safetensors files ({', '.join(stored.dtypes)}); only headers were read"
            )
            notes.append(Note("weights on disk", text))
        recognised = f"{kind} folder ({_class_of(folder)})"
    job = make_job({"name": name, "components": components, "precision": "bf16"}, str(folder))
    return Reading(job=job, recognised_as=recognised, notes=tuple(notes), assumed=assumed)


def _pipeline(folder: Path, notes: list[Note]) -> tuple[dict[str, Any], str]:
    """The denoiser is trained; autoencoder and text encoders lie beside it, frozen, in bf16."""
    parts = pipeline_parts(folder)
    networks = [name for name in parts if name not in _NOT_NETWORKS]
    main = next((name for name in _DENOISERS if name in networks), None)
    if main is None:
        raise UsageError(
            f"{folder / PIPELINE}: none of its parts with a {CONFIG} ({', '.join(networks) or 'none'}) is a "
            "transformer or unet to train; name one part's folder, or say what is trained in a vramcast.yaml"
        )
    components: dict[str, Any] = {}
    for name in networks:
        if name != main:
            role = "vae" if "vae" in name else "text-encoder" if "text" in name else "other"
            components[name] = {
                "diffusers": str(folder), "subfolder": name, "mode": "frozen", "dtype": "bf16", "role": role,
                "call": False,
            }  # fmt: skip
    components[main] = {"diffusers": str(folder), "subfolder": main}
    if len(networks) > 1:
        others = ", ".join(name for name in networks if name != main)
        notes.append(Note("assumed", f"{others}: frozen on the card in bf16, latents and embeddings come ready-made"))
    pipeline = read_json(folder / PIPELINE).get("_class_name", "pipeline")
    return components, f"diffusers folder ({pipeline})"


def _class_of(folder: Path) -> str:
    config = read_json(folder / CONFIG)
    architectures = config.get("architectures")
    if isinstance(architectures, list) and architectures:
        return str(architectures[0])
    return str(config.get("_class_name") or config.get("model_type") or "model")
