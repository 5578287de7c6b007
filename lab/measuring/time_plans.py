"""Time, on a CUDA GPU, the plans of convolutions as cudnn.benchmark does.

    python -m lab.measuring.time_plans --problems FILE --out FILE --seconds 60 [--worker 0 --workers 8]

FILE has a problem a line (`lab/data/records/plan_times` holds some): operation, shapes of x, w and y, padding, stride,
dilation, dtype, channels-last, TF32. A line of the result is the same with its plans, in PyTorch's order: engine, knobs,
whether it runs on tensor cores, workspace, and how long it took in microseconds. PyTorch looks at the first of these times
only. Several workers take turns on the card, while the others compile their plans.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import gzip
import json
import math
import time
from pathlib import Path
from typing import Any

import torch

from lab.comparing.fastest_plans import problem_of
from lab.measuring.workspace_sweep.heuristics import DeviceHeuristics
from vramcast.card.libraries.convolution import TIMED_PLANS
from vramcast.card.libraries.cudnn_query import CudnnError, strides
from vramcast.card.libraries.problem import ConvolutionProblem

_PLAN, _PACK = 5, 16  # cudnn_graph.h: kinds of descriptors, then their attributes and types
_PLAN_HANDLE, _PLAN_CONFIG, _PLAN_WORKSPACE = 400, 401, 402
_PACK_UIDS, _PACK_POINTERS, _PACK_WORKSPACE = 1000, 1001, 1003
_HANDLE, _INT64, _POINTER, _DESCRIPTOR = 0, 3, 6, 15
_MODES = (0, 2)
_TENSOR_CORE_NOTE = 0
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_SAMPLES, _LONG_MICROSECONDS = 6, 20_000
_SPARE_PLANS = 2  # should some not run
_LARGEST_WORKSPACE = 12 << 30


class Timer(DeviceHeuristics):
    def measure(self, problem: ConvolutionProblem, turn: int) -> list[list[Any]]:
        with self._descriptors() as make:
            plans = self._plans(problem, make)
            fcntl.flock(turn, fcntl.LOCK_EX)
            try:
                return self._timed(problem, plans, make)
            finally:
                torch.cuda.empty_cache()
                fcntl.flock(turn, fcntl.LOCK_UN)

    def _plans(self, problem: ConvolutionProblem, make: Any) -> list[tuple[ctypes.c_void_p, list[Any]]]:
        graph, plans = self._graph(problem, make), []
        for mode in _MODES:
            for config in self._configs(graph, ctypes.c_void_p(), mode, make):
                if len(plans) == TIMED_PLANS + _SPARE_PLANS or self._is_filtered(config, problem, make):
                    continue
                plan, size = make(_PLAN), ctypes.c_int64()
                self._set(plan, _PLAN_HANDLE, _HANDLE, 1, ctypes.byref(self._handle))
                self._set(plan, _PLAN_CONFIG, _DESCRIPTOR, 1, ctypes.byref(config))
                if self._library.cudnnBackendFinalize(plan) != 0:
                    continue
                self._get(plan, _PLAN_WORKSPACE, _INT64, 1, ctypes.byref(size))
                if size.value <= _LARGEST_WORKSPACE:
                    on_tensor_cores = int(_TENSOR_CORE_NOTE in self._notes(config, make))
                    told = [self._engine(config, make), dict(self._knobs(config, make)), on_tensor_cores, size.value]
                    plans.append((plan, told))
        return plans

    def _timed(self, problem: ConvolutionProblem, plans: list[Any], make: Any) -> list[list[Any]]:
        tensors = [_tensor(shape, problem) for shape in (problem.x, problem.y, problem.w)]
        workspace = torch.empty(max([told[-1] for _, told in plans], default=0) + 256, dtype=torch.uint8, device="cuda")
        pointers = (ctypes.c_void_p * 3)(*(tensor.data_ptr() for tensor in tensors))
        pack = make(_PACK)
        self._set(pack, _PACK_UIDS, _INT64, 3, (ctypes.c_int64 * 3)(*map(ord, "xyw")))
        self._set(pack, _PACK_POINTERS, _POINTER, 3, pointers)
        self._set(pack, _PACK_WORKSPACE, _POINTER, 1, (ctypes.c_void_p * 1)(workspace.data_ptr()))
        self._finalize(pack)
        timed: list[list[Any]] = []
        for plan, told in plans:
            if len(timed) < TIMED_PLANS and self._library.cudnnBackendExecute(self._handle, plan, pack) == 0:
                torch.cuda.synchronize()
                timed.append([*told, self._times(plan, pack)])
        return timed

    def _times(self, plan: ctypes.c_void_p, pack: ctypes.c_void_p) -> list[float]:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        times: list[float] = []
        while len(times) < _SAMPLES and sum(times) <= _LONG_MICROSECONDS:
            start.record()
            self._library.cudnnBackendExecute(self._handle, plan, pack)
            stop.record()
            stop.synchronize()
            times.append(round(start.elapsed_time(stop) * 1e3, 1))
        return times


def _tensor(shape: tuple[int, ...], problem: ConvolutionProblem) -> torch.Tensor:
    flat = torch.empty(math.prod(shape), dtype=_DTYPES[problem.dtype], device="cuda").normal_()
    return flat.as_strided(shape, strides(shape, problem.channels_last))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--worker", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    ends = time.monotonic() + args.seconds
    torch.zeros(1, device="cuda")
    timer = Timer()
    with (
        gzip.open(args.problems, "rt") as problems,
        args.out.open("w") as out,
        args.out.with_name("turn.lock").open("w") as turn,
    ):
        for number, text in enumerate(problems):
            if time.monotonic() > ends:
                break
            if number % args.workers != args.worker:
                continue
            line = json.loads(text)[:10]
            try:
                plans = timer.measure(problem_of(line), turn.fileno())
            except (CudnnError, torch.OutOfMemoryError) as failure:
                print(number, str(failure)[:200], flush=True)
                continue
            out.write(json.dumps([*line, plans], separators=(",", ":")) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
