"""The card in this machine, if there is one. Needs no torch and creates no CUDA context."""

from __future__ import annotations

from vramcast.gpus.spec import GpuSpec
from vramcast.gpus.state import local_gpus


def detect_gpu() -> GpuSpec | None:
    """The first visible card; one that is not in gpus.toml is known by its size alone."""
    here = next(iter(local_gpus()), None)
    return None if here is None else here.spec()
