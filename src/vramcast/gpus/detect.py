"""The card in this machine, if there is one. Needs no torch and creates no CUDA context."""

from __future__ import annotations

from vramcast.gpus.catalogue import find_gpu
from vramcast.gpus.spec import GpuSpec
from vramcast.gpus.state import local_gpus

DEFAULT_CARD = "rtx-4090"


def chosen_gpu(wanted: str | GpuSpec | None) -> tuple[GpuSpec, str | None]:
    """The card asked for, or the one in this machine, or a stated default; and a remark where it was a guess."""
    if wanted is not None:
        return (find_gpu(wanted) if isinstance(wanted, str) else wanted), None
    here = detect_gpu()
    if here is not None:
        return here, f"none was named: the one in this machine, {here.short_name}, is taken"
    default = find_gpu(DEFAULT_CARD)
    return default, f"none was named and there is none here: {default.short_name} is taken"


def detect_gpu() -> GpuSpec | None:
    """The first visible card; one that is not in gpus.toml is known by its size alone."""
    here = next(iter(local_gpus()), None)
    return None if here is None else here.spec()
