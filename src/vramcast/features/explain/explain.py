"""`explain(job, module)`: the arithmetic behind a module's numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vramcast.base.shown import Shown
from vramcast.features.explain.modules import Explanation
from vramcast.features.explain.modules import explain as explain_trace
from vramcast.gpus import GpuSpec
from vramcast.jobs.load import LoadedJob
from vramcast.jobs.schema import Job
from vramcast.memory.lengthening import lengthened
from vramcast.memory.module_names import find_modules
from vramcast.memory.replay import replay
from vramcast.prediction.job_prediction import JobPrediction
from vramcast.prediction.predict import predict


@dataclass(frozen=True, slots=True, repr=False)
class JobExplanation(Shown):
    explanation: Explanation
    prediction: JobPrediction


def explain(
    job: JobPrediction | Job | LoadedJob | Mapping[str, Any] | str | Path,
    module: str,
    gpu: str | GpuSpec | None = None,
    *,
    depth: int | None = None,
    allow_code: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> JobExplanation:
    """Where the memory of `module` goes: a dotted name with or without its component, or a pattern. `job` may be a
    prediction made before.

    Lines go at most `depth` names below the module; left out, to the bottom. `allow_code`: a file that `job` names may
    name code to run.
    """
    result = job if isinstance(job, JobPrediction) else predict(job, gpu, allow_code=allow_code, progress=progress)
    prediction = result.prediction
    trace = prediction.trace
    assert trace is not None
    names = [*result.output_shapes, *(row.module for row in result.parameter_rows), *trace.modules]
    modules = find_modules(module, names)
    # Under the limit where it fits, as in the account; without one where it does not.
    run = replay(lengthened(trace), prediction.allocator_conf, trace.capacity_bytes if prediction.fits else None)
    explanation = explain_trace(
        run, modules, result.parameter_rows, result.input_shapes, result.output_shapes, depth=depth
    )
    return JobExplanation(explanation, result)
