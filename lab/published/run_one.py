"""Run one rank of a recipe on a virtual card; a JSON document of its peaks and times goes to standard output.

python -m lab.published.run_one RANK < recipe.json
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from typing import Any

from lab.published.recipe import Recipe


def main() -> None:
    recipe = Recipe(**json.load(sys.stdin))
    rank = int(sys.argv[1])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        json.dump(run(recipe, rank), out)
    except Exception as error:
        print(getattr(error, "traceback_text", ""), file=sys.stderr)
        raise
    out.close()


def run(recipe: Recipe, rank: int) -> dict[str, Any]:
    from vramcast.gpus import find_gpu
    from vramcast.scripts import stopping
    from vramcast.scripts.runner import run_script
    from vramcast.timing.step import predict_step

    stopping.CAPTURE_PATIENCE = recipe.steps  # the sources mention graphs that these settings do not capture
    began = time.time()
    gpu = dataclasses.replace(find_gpu(recipe.gpu), **recipe.card_changes)
    prediction = run_script(
        recipe.program,
        recipe.arguments,
        gpu=gpu,
        steps=recipe.steps,
        environment={**recipe.environment, **_launched(recipe, rank)},
        limit_bytes=1 << 43,
    )
    step = prediction.time
    longer = predict_step(prediction.trace, gpu, further_passes=1) if step else None
    return {
        "rank": rank,
        "allocated": prediction.peak_allocated_bytes,
        "reserved": prediction.peak_reserved_bytes,
        "step_seconds": step.seconds if step else None,
        "pass_seconds": longer.seconds - step.seconds if step and longer else 0.0,
        "phases": dict(step.phases) if step else {},
        "device_seconds": step.device_seconds if step else None,
        "host_seconds": step.host_seconds if step else None,
        "steps": prediction.steps,
        "took": round(time.time() - began, 1),
    }


def _launched(recipe: Recipe, rank: int) -> dict[str, str]:
    """What torchrun sets."""
    here = min(recipe.cards, recipe.cards_per_node)
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(recipe.cards),
        "LOCAL_RANK": str(rank % here),
        "LOCAL_WORLD_SIZE": str(here),
        "GROUP_RANK": str(rank // here),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }


if __name__ == "__main__":
    main()
