"""Run one rank of each job of `jobs.py` on the virtual card, and compare it with what was measured.

python -m lab.ranks.predict [NAME ...] [--records FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import time
import traceback
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).parent / "records"


def predict(name: str, steps: int = 6) -> tuple[list[dict[str, int]], Any]:
    """(the figures after each step, the trace)."""
    import torch

    import vramcast
    from lab.ranks import jobs, more_jobs

    world, rank, start = (jobs.JOBS | more_jobs.JOBS)[name]
    os.environ.update(WORLD_SIZE=str(world), RANK=str(rank), LOCAL_RANK="0", MASTER_ADDR="localhost", MASTER_PORT="1")
    rows: list[dict[str, int]] = []
    with vramcast.virtual_gpu("h200") as card:
        torch.distributed.init_process_group("nccl")
        try:
            for step, _ in enumerate(start()):
                rows.append(
                    {
                        "allocated": torch.cuda.max_memory_allocated(),
                        "reserved": torch.cuda.max_memory_reserved(),
                        "allocated_now": torch.cuda.memory_allocated(),
                    }
                )
                if step + 1 == steps:
                    break
        finally:
            torch.distributed.destroy_process_group()
    return rows, card


def main() -> None:
    from lab.ranks import jobs, more_jobs

    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--tracebacks", action="store_true")
    options = parser.parse_args()
    for name in options.names or (jobs.JOBS | more_jobs.JOBS):
        began = time.time()
        try:
            rows, _ = predict(name, options.steps)
        except Exception as error:
            if options.tracebacks:
                traceback.print_exc()
            print(f"{name:26s} {type(error).__name__}: {str(error).strip()[:200]}", flush=True)
            continue
        last = rows[-1]
        text = (
            f"{name:26s} {len(rows)} steps {last['allocated']:>14,} {last['reserved']:>14,} {time.time() - began:6.1f}s"
        )
        path = options.records / f"{name}.json"
        if path.exists():
            measured = json.loads(path.read_text())["steps"]
            if measured:
                off = [
                    f"{key} {100 * (row[key] / real[key] - 1):+.2f} % ({row[key] - real[key]:+,})"
                    for key in ("allocated", "reserved")
                    for row, real in [(rows[-1], measured[len(rows) - 1])]
                ]
                text += "  " + ", ".join(off)
        print(text, flush=True)


if __name__ == "__main__":
    main()
