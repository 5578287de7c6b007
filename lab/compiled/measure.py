"""Run one workload on a real card and write down what it took, allocation by allocation.

python measure.py NAME RESULT_FOLDER
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NAME, RESULT = sys.argv[1], Path(sys.argv[2])
CACHE = Path(os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"/tmp/inductor-{NAME}"))
os.environ.setdefault("TRITON_CACHE_DIR", str(CACHE / "triton"))
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "3")

import torch  # noqa: E402
import workloads  # noqa: E402

marks: list[int] = []
benchmarked: list[list[Any]] = []
padded: list[Any] = []


def trace() -> list[dict[str, Any]]:
    return torch.cuda.memory._snapshot()["device_traces"][0]


def watch_choices() -> None:
    """Note what benchmarks decide: kernels with several configurations, and padded matrix products."""
    from torch._inductor.fx_passes import pad_mm
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    original = CachingAutotuner.benchmark_all_configs
    should_pad = pad_mm.should_pad

    def benchmark_all_configs(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = len(trace())
        result = original(self, *args, **kwargs)
        benchmarked.append([self.inductor_meta.get("kernel_name"), len(self.launchers), before, len(trace())])
        return result

    def pads(match: Any, mat1: Any, mat2: Any, op: Any, *rest: Any, **kwargs: Any) -> Any:
        before = len(trace())
        result = should_pad(match, mat1, mat2, op, *rest, **kwargs)
        padded.append([str(op), [str(s) for s in mat1.shape], [str(s) for s in mat2.shape], str(mat1.dtype),
                       bool(result), before, len(trace())])  # fmt: skip
        return result

    CachingAutotuner.benchmark_all_configs = benchmark_all_configs
    pad_mm.should_pad = pads


def main() -> None:
    RESULT.mkdir(parents=True, exist_ok=True)
    torch.cuda.init()
    free, _ = torch.cuda.mem_get_info()
    torch.cuda.memory._record_memory_history(enabled="all", context=None, stacks="python", max_entries=2_000_000)
    workloads.RECORD.after_step = lambda: marks.append(len(trace()))
    watch_choices()
    begin, error = time.time(), None
    torch.manual_seed(0)
    try:
        workloads.WORKLOADS[NAME]()
    except Exception as raised:
        error = repr(raised)[:2000]
    free_after, _ = torch.cuda.mem_get_info()
    record = {
        "name": NAME, "steps": workloads.RECORD.steps, "error": error, "seconds": round(time.time() - begin, 1),
        "device_taken": free - free_after, "torch": torch.__version__, "gpu": torch.cuda.get_device_name(),
        "benchmarked": benchmarked, "padded": padded, "marks": marks,
        "graph_breaks": {str(k): v for k, v in torch._dynamo.utils.counters["graph_break"].items()},
        "properties": repr(torch.cuda.get_device_properties(0)),
    }  # fmt: skip
    (RESULT / f"{NAME}.json").write_text(json.dumps(record))
    events = [[e["action"], e["addr"], e["size"], e["stream"]] for e in trace()]
    with gzip.open(RESULT / f"{NAME}.events.gz", "wt") as stream:
        json.dump(events, stream)
    folder = Path(f"/tmp/wrappers-{NAME}") / NAME
    folder.mkdir(parents=True, exist_ok=True)
    for file in CACHE.rglob("*.py"):
        if "def call(" in file.read_text(errors="replace"):
            shutil.copy(file, folder / file.name)
    subprocess.run(["tar", "czf", RESULT / f"{NAME}.wrappers.tgz", "-C", folder.parent, NAME], check=False)
    last = record["steps"][-1] if record["steps"] else {}
    print(NAME, record["seconds"], "s", last, error or "", flush=True)


main()
