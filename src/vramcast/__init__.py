"""Know before you train whether a PyTorch run fits the GPU, where every byte goes, and why.

    with vramcast.virtual_gpu("rtx-4090") as gpu:
        ...                                     # ordinary PyTorch that says "cuda"
    gpu.prediction().peak_reserved_bytes

Everything here is loaded on first use: importing vramcast imports neither torch nor anything else that is slow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vramcast.card.device.context import VirtualGpu, virtual_gpu
    from vramcast.card.dispatch.rules import rule
    from vramcast.features.advise.advise import advise
    from vramcast.features.check.check import check
    from vramcast.features.compare.scenarios import compare
    from vramcast.features.diagnose.diagnose import diagnose
    from vramcast.features.explain.explain import explain
    from vramcast.features.guard.api import guard
    from vramcast.features.plan.plan import plan
    from vramcast.features.table.table import table
    from vramcast.features.what_if.what_if import what_if
    from vramcast.gpus import GpuSpec, all_gpus, find_gpu
    from vramcast.jobs.schema import Job
    from vramcast.memory import Prediction
    from vramcast.prediction.job_prediction import JobPrediction
    from vramcast.prediction.predict import predict

__version__ = "0.1.0"

__all__ = [
    "GpuSpec",
    "Job",
    "JobPrediction",
    "Prediction",
    "VirtualGpu",
    "__version__",
    "advise",
    "all_gpus",
    "check",
    "compare",
    "diagnose",
    "explain",
    "find_gpu",
    "guard",
    "plan",
    "predict",
    "rule",
    "table",
    "virtual_gpu",
    "what_if",
]

_HOMES = {
    "GpuSpec": "vramcast.gpus",
    "all_gpus": "vramcast.gpus",
    "find_gpu": "vramcast.gpus",
    "Job": "vramcast.jobs.schema",
    "advise": "vramcast.features.advise.advise",
    "what_if": "vramcast.features.what_if.what_if",
    "plan": "vramcast.features.plan.plan",
    "check": "vramcast.features.check.check",
    "compare": "vramcast.features.compare.scenarios",
    "diagnose": "vramcast.features.diagnose.diagnose",
    "guard": "vramcast.features.guard.api",
    "explain": "vramcast.features.explain.explain",
    "table": "vramcast.features.table.table",
    "JobPrediction": "vramcast.prediction.job_prediction",
    "predict": "vramcast.prediction.predict",
    "Prediction": "vramcast.memory",
    "VirtualGpu": "vramcast.card.device.context",
    "virtual_gpu": "vramcast.card.device.context",
    "rule": "vramcast.card.dispatch.rules",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'vramcast' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
