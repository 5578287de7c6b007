"""FNO, U-Net, DDPM and transformer as jobs, from a width and the sizes of a sample. Without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vramcast.base.errors import UsageError

_PATCH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    factory: str
    width: int
    """Channels that are usual."""
    layers: int
    """Layers, scales or blocks that are usual; what one is, `of` says."""
    of: str
    inputs: Callable[[int, Mapping[str, int]], dict[str, Any]]
    """Fields of the job that say what it is given, from the width and the sizes."""


def _image(width: int, sizes: Mapping[str, int]) -> dict[str, Any]:
    return {
        "components": {"model": {"inputs": ["field"]}},
        "inputs": {
            "field": {"shape": ["batch", 1, "height", "width"]},
            "target": {"shape": ["batch", 1, "height", "width"]},
        },
        "loss": {"kind": "mse", "target": "target"},
    }


def _noised(width: int, sizes: Mapping[str, int]) -> dict[str, Any]:
    return {
        "components": {"model": {"inputs": ["noised", "times"]}},
        "inputs": {
            "noised": {"shape": ["batch", 3, "height", "width"]},
            "times": {"shape": ["batch"], "dtype": "int64", "below": 1000},
            "noise": {"shape": ["batch", 3, "height", "width"]},
        },
        "loss": {"kind": "mse", "target": "noise"},
    }


def _tokens(width: int, sizes: Mapping[str, int]) -> dict[str, Any]:
    """A sequence as it is said, or that of an image in patches."""
    length: Any = "sequence" if "sequence" in sizes else f"height // {_PATCH} * (width // {_PATCH})"
    shape = ["batch", length, width]
    return {
        "components": {"model": {"inputs": ["tokens"]}},
        "inputs": {"tokens": {"shape": shape}, "target": {"shape": shape}},
        "loss": {"kind": "mse", "target": "target"},
    }


KINDS: dict[str, Kind] = {
    "fno": Kind(factory="vramcast.jobs.networks.fno:FNO", width=64, layers=4, of="spectral layers", inputs=_image),
    "unet": Kind(factory="vramcast.jobs.networks.unet:UNet", width=64, layers=4, of="scales", inputs=_image),
    "ddpm": Kind(factory="vramcast.jobs.networks.ddpm:DiffusionUNet", width=128, layers=4, of="scales", inputs=_noised),
    "transformer": Kind(
        factory="vramcast.jobs.networks.transformer:Transformer", width=768, layers=12, of="blocks", inputs=_tokens
    ),
}
"""By the name that `--arch` takes."""


def named(name: str) -> Kind:
    if name not in KINDS:
        raise UsageError(f"--arch {name}: write one of {', '.join(KINDS)}")
    return KINDS[name]


def kind_of_class(name: str) -> str | None:
    """The kind that a class is called after: FNO2d, UNet2d, DDPM, GalerkinTransformer."""
    plain = name.lower().replace("-", "").replace("_", "")
    words = {"fno": "fno", "ddpm": "ddpm", "sr3": "ddpm", "unet": "unet", "transformer": "transformer"}
    return next((kind for word, kind in words.items() if word in plain), None)


def job_of(
    name: str, sizes: Mapping[str, int], width: int | None = None, layers: int | None = None, **arguments: Any
) -> dict[str, Any]:
    """The fields of a job that trains such a network with AdamW."""
    kind = named(name)
    channels = width or kind.width
    said = dict(sizes)
    if "sequence" not in said or name != "transformer":
        said.setdefault("height", 128)
        said.setdefault("width", said["height"])
    job = kind.inputs(channels, said)
    model = {"factory": kind.factory, "arguments": {"width": channels, "layers": layers or kind.layers, **arguments}}
    job["components"] = {"model": {**model, **job["components"]["model"]}}
    return {"name": name, **job, "sizes": said, "optimizer": "adamw"}
