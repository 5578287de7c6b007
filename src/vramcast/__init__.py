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
    from vramcast.advice.advise import advise
    from vramcast.advice.plan import plan
    from vramcast.advice.what_if import what_if
    from vramcast.gpus import GpuSpec, all_gpus, find_gpu
    from vramcast.guard.entry import guard
    from vramcast.jobs.check import check
    from vramcast.jobs.compare import compare
    from vramcast.jobs.explain import explain
    from vramcast.jobs.prediction import JobPrediction
    from vramcast.jobs.run import predict
    from vramcast.jobs.schema import Job
    from vramcast.jobs.table import table
    from vramcast.memory import Prediction
    from vramcast.run_diagnosis.diagnose import diagnose
    from vramcast.virtual_gpu.context import VirtualGpu, virtual_gpu
    from vramcast.virtual_gpu.rules import rule

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
    "advise": "vramcast.advice.advise",
    "what_if": "vramcast.advice.what_if",
    "plan": "vramcast.advice.plan",
    "check": "vramcast.jobs.check",
    "compare": "vramcast.jobs.compare",
    "diagnose": "vramcast.run_diagnosis.diagnose",
    "explain": "vramcast.jobs.explain",
    "table": "vramcast.jobs.table",
    "JobPrediction": "vramcast.jobs.prediction",
    "predict": "vramcast.jobs.run",
    "Prediction": "vramcast.memory",
    "VirtualGpu": "vramcast.virtual_gpu.context",
    "rule": "vramcast.virtual_gpu.rules",
}


def __getattr__(name: str) -> Any:
    if name in ("virtual_gpu", "guard"):
        # The package of that name, which can be called like the function (see its __init__): Python puts the
        # package here whenever one of its modules is imported, so both must work.
        return importlib.import_module(f"vramcast.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'vramcast' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
