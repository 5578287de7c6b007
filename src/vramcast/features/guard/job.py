"""A job is predicted in a process of its own: what this one holds on the card, or has set in torch, stays as it is."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from vramcast.base.errors import CannotPredict, UsageError
from vramcast.base.processes import ending_with_this
from vramcast.features.guard.fallbacks import smaller_batches
from vramcast.gpus import GpuSpec
from vramcast.trace import StepTrace


def is_job(what: Any) -> bool:
    jobs = sys.modules.get("vramcast.jobs.schema"), sys.modules.get("vramcast.jobs.load")
    kinds = tuple(getattr(module, name) for module, name in zip(jobs, ("Job", "LoadedJob"), strict=True) if module)
    return isinstance(what, kinds)


class JobSubject:
    def __init__(self, what: Any, *, allow_code: bool = False) -> None:
        from vramcast.prediction.predict import as_loaded

        self._loaded = as_loaded(what, allow_code=allow_code)

    @property
    def name(self) -> str:
        return str(self._loaded.job.name)

    @property
    def gpu(self) -> str | None:
        target: str | None = self._loaded.job.target.gpu
        return target

    def own_bytes(self) -> int | None:
        return None  # a training script that guards its job holds nothing on the card but that job

    def trace(self, gpu: GpuSpec, changes: Mapping[str, Any], available_bytes: int, steps: int) -> StepTrace:
        job = self.apply(changes)
        request = {
            "job": job.model_dump(mode="json", exclude_unset=True),
            "gpu": gpu.to_dict(),
            "available_bytes": available_bytes,
            "steps": steps,
        }
        command = [sys.executable, "-m", "vramcast.features.guard.worker", str(os.getpid())]
        search = os.pathsep.join(entry for entry in sys.path if entry)
        done = subprocess.run(
            command, input=json.dumps(request).encode(), capture_output=True, check=False,
            env={**os.environ, "PYTHONPATH": search}, preexec_fn=ending_with_this(),
        )  # fmt: skip
        if done.returncode == 0:
            trace: StepTrace = pickle.loads(done.stdout)
            return trace
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        message = lines[-1].removeprefix("vramcast: ") if lines else f"the prediction ended with {done.returncode}"
        raise (UsageError if done.returncode == UsageError.exit_code else CannotPredict)(message)

    def named(self, fallback: str) -> Iterator[Mapping[str, Any]]:
        job = self._loaded.job
        if fallback == "micro-batch":
            batch = job.effective_sizes["batch"]
            yield from smaller_batches("sizes.batch", batch, "accumulation", job.accumulation)
        elif fallback == "checkpointing":
            yield {"checkpointing": "all"}
        else:
            from vramcast.jobs.scenarios import changes_of

            yield changes_of(job, fallback, f"fallbacks: {fallback}")

    def apply(self, changes: Mapping[str, Any]) -> Any:
        from vramcast.jobs.code_places import code_in
        from vramcast.jobs.load import with_overrides

        job = with_overrides(self._loaded.job, changes, "fallbacks")
        self._loaded.request.gate.check(*code_in(job, self._loaded.where))  # a scenario of the file may name code
        return job
