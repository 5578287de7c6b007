"""The process that `vramcast measure` starts: measures one job and answers on its standard output."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from vramcast.base.errors import UsageError, VramcastError
from vramcast.base.language import sentence, spoken
from vramcast.base.processes import end_with_parent, take_standard_output
from vramcast.features.compare.results import MEASUREMENT_FORMAT, MEASUREMENT_VERSION

_EXIT_OUT_OF_MEMORY = 1
_EXIT_SCRIPT_FAILED = 2


def main(job_text: str, answer: BinaryIO) -> int:
    job = json.loads(job_text)
    with spoken(job.get("language", "en")):
        return _answer(job, answer)


def _answer(job: dict[str, Any], answer: BinaryIO) -> int:
    import torch

    try:
        if not torch.cuda.is_available():
            raise UsageError(
                "measuring needs a GPU that PyTorch can use; there is none here (`vramcast run` predicts without one)"
            )
        document = measure_job(job)
    except VramcastError as error:
        print(f"vramcast: {sentence(str(error))}", file=sys.stderr)
        return error.exit_code
    except torch.OutOfMemoryError as error:
        print(f"vramcast: {sentence('the real GPU ran out of memory')}: {error}", file=sys.stderr)
        return _EXIT_OUT_OF_MEMORY
    except Exception:
        traceback.print_exc()
        print(f"vramcast: {sentence('the job failed on the real GPU; its error is above')}", file=sys.stderr)
        return _EXIT_SCRIPT_FAILED
    with answer:
        answer.write(json.dumps(document).encode())
    return 0


def measure_job(job: dict[str, Any]) -> dict[str, Any]:
    """`job`: target, script_args, factory_args, steps. Gives the measurement document."""
    from vramcast.base.factories import check_arguments, load_factory
    from vramcast.features.measure.script_steps import ScriptSteps

    target: str = job["target"]
    is_script = target.endswith(".py") and ":" not in target
    if is_script:
        if not Path(target).is_file():
            raise UsageError(f"no such script: {target}")
        if job["factory_args"]:
            raise UsageError("--arg is for factories; a script's own arguments follow its name")
        script = ScriptSteps(target, job["script_args"])
        run = script.measure(lambda: _measure(script.start, {}, job["steps"]))
        source = " ".join([target, *job["script_args"]])
    else:
        if job["script_args"]:
            raise UsageError(f"{job['script_args'][0]!r}: a factory takes its arguments as --arg NAME=VALUE")
        sys.path.insert(0, "")
        factory = load_factory(target)
        check_arguments(factory, job["factory_args"])
        run = _measure(factory, job["factory_args"], job["steps"])
        source = " ".join([target, *(f"{name}={value}" for name, value in job["factory_args"].items())])
    return {"format": MEASUREMENT_FORMAT, "version": MEASUREMENT_VERSION, "source": source, "run": run}


def _measure(factory: Callable[..., Any], arguments: dict[str, Any], steps: int) -> dict[str, Any]:
    from vramcast.features.measure.loading import time_loader
    from vramcast.features.measure.module_peaks import module_peaks
    from vramcast.features.measure.real_run import measure_factory

    made: list[Callable[[], object]] = []

    def keeping(**values: Any) -> Callable[[], object]:
        made.append(factory(**values))
        return made[0]

    # The first steps are warm-up: optimizer state appears in the first, and kernels are still being chosen.
    loaders: list[tuple[Any, int]] = []
    run = measure_factory(
        keeping, arguments, steps=steps, warmup_steps=min(2, steps - 1),
        then=lambda _, watcher: loaders.append((watcher.loader, watcher.batches)),
    )  # fmt: skip
    extra = {**run.extra, "module_peaks": module_peaks(made[0])}
    loader, batches = loaders[0]
    if loader is not None:
        # Last, because it takes batches that the job does not get.
        loading = time_loader(loader, step_seconds=run.step_seconds, batches_per_step=max(1, batches))
        extra["loading"] = None if loading is None else loading.to_json()
    return replace(run, extra=extra).to_json()


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    code = main(sys.argv[2], take_standard_output())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads that the script left running are not waited for
