"""The process in which a guard predicts a job: reads it from standard input, answers with its trace, pickled."""

from __future__ import annotations

import dataclasses
import json
import pickle
import sys

from vramcast.base.errors import VramcastError
from vramcast.base.factories import hush_torch, without_cache_folder
from vramcast.base.processes import end_with_parent, take_standard_output
from vramcast.gpus import GpuSpec


def main(parent: int) -> int:
    end_with_parent(parent)
    answer = take_standard_output()
    request = json.load(sys.stdin)
    gpu = GpuSpec.from_dict(request["gpu"])
    available = request["available_bytes"]
    hush_torch()
    without_cache_folder()
    try:
        from vramcast.jobs.validation import make_job
        from vramcast.prediction.tracing import trace_job

        job = make_job(request["job"], "job")
        # As a card of that size, it is also tried with smaller convolution workspaces.
        card = dataclasses.replace(gpu, total_memory_bytes=available) if available > gpu.context_bytes else gpu
        traced = trace_job(job, card, steps=request["steps"], allocator_conf=job.allocator_conf)
        trace = dataclasses.replace(traced.trace, notes=(*traced.trace.notes, *traced.notes), gpu=gpu.to_dict())
        with answer:
            pickle.dump(trace, answer)
    except VramcastError as error:
        print(f"vramcast: {error}".replace("\n", " "), file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
