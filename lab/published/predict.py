"""Predict drawn rows and keep what came out.

    python -m lab.published.predict memory [--only TEXT] [--again]

Results go to `results_memory.csv` and `results_speed.csv`, one line a row, with the versions they were made with.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab import ROOT
from lab.published import golden, simumax, titan, tune
from lab.published.checkouts import work_folder
from lab.published.recipe import NoRecipe, Recipe

FOLDER = Path(__file__).parent
RESULT_COLUMNS = ("row", "allocated", "reserved", "step_seconds", "rank", "took", "assumed", "failure", "torch")
TIMEOUT_SECONDS = 900

RECIPES: dict[str, Callable[[dict[str, str]], Recipe]] = {
    "Megatron-LM": golden.recipe,
    "SimuMax": simumax.recipe,
    "torchtitan": titan.recipe,
    "torchao": titan.recipe,
    "torchtune": tune.recipe,
}


def read(name: str) -> list[dict[str, str]]:
    path = FOLDER / name
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write(name: str, entries: list[dict[str, Any]]) -> None:
    with (FOLDER / name).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, RESULT_COLUMNS, lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows(sorted(entries, key=lambda entry: int(entry["row"])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("memory", "speed"))
    parser.add_argument("--only", default="", help="rows whose number, source or model has this in it")
    parser.add_argument("--again", action="store_true", help="also rows that have a result")
    parser.add_argument("--failed", action="store_true", help="also rows that failed before")
    parser.add_argument("--kept", action="store_true", help="only rows whose runs were made already, by `farm`")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has what the programs import")
    options = parser.parse_args()
    name = f"results_{options.what}.csv"
    for row in read(f"drawn_{options.what}.csv"):
        done = {entry["row"]: entry for entry in read(name)}
        earlier = done.get(row["row"])
        if earlier and not options.again and not (options.failed and earlier["failure"]):
            continue
        if not any(options.only in text for text in (f"#{row['row']}#", row["by"], row["model"])):
            continue
        if options.kept and not is_kept(row):
            continue
        result = {"row": row["row"], **predict(row, options.python)}
        done = {entry["row"]: entry for entry in read(name)} | {row["row"]: result}  # others may have written meanwhile
        write(name, list(done.values()))
        _show(row, done[row["row"]])


def is_kept(row: dict[str, str]) -> bool:
    """Whether nothing is left to run for it."""
    try:
        recipe = RECIPES[row["by"]](row)
    except (NoRecipe, KeyError):
        return True
    return all(run_file(recipe, rank).exists() for rank in recipe.ranks)


def predict(row: dict[str, str], python: str) -> dict[str, Any]:
    import torch

    versions = {"torch": torch.__version__}
    try:
        make = RECIPES.get(row["by"])
        if make is None:
            raise NoRecipe("no recipe for this source yet")
        recipe = make(row)
        ranks = [_run(recipe, rank, python) for rank in recipe.ranks]
    except NoRecipe as error:
        return {"failure": str(error), **versions}
    largest = max(ranks, key=lambda rank: rank["reserved"])
    slowest = max(_with_bubble(row, rank, recipe.further_passes) for rank in ranks)
    return {
        **{key: largest[key] for key in ("allocated", "reserved", "rank")},
        "step_seconds": slowest,
        "took": sum(rank["took"] for rank in ranks),
        "assumed": "; ".join(text for text in (recipe.assumed, largest.get("assumed", "")) if text),
        **versions,
    }


PASSES = ("forward", "backward")


def _with_bubble(row: dict[str, str], rank: dict[str, Any], further_passes: int = 0) -> float:
    """A stage of a pipeline waits while the others begin and end: for the passes of (stages - 1) microbatches, divided
    by the parts of the model that each stage holds."""
    further = further_passes * float(rank.get("pass_seconds", 0.0))
    seconds = float(rank["step_seconds"] or 0.0) + further
    stages = int(row["pp"] or 1)
    if stages == 1:
        return seconds
    parts = 2 if "Interleaved" in row["notes"] else 1
    passes = sum(rank.get("phases", {}).get(name, 0.0) for name in PASSES) + further or seconds
    return seconds + passes * (stages - 1) / (microbatches(row) * parts)


def microbatches(row: dict[str, str]) -> int:
    """Of a rank in a step. torchtitan's rows state the local batch, which it cuts into single samples."""
    stated = re.search(r"micro_batches=(\d+)", row["notes"])
    return int(stated.group(1)) if stated else int(row["micro_batch"])


def _run(recipe: Recipe, rank: int, python: str) -> dict[str, Any]:
    kept = run_file(recipe, rank)
    if not kept.exists():
        run(json.dumps(dataclasses.asdict(recipe)), rank, python, kept)
    if not kept.exists():
        raise NoRecipe(f"not done in {TIMEOUT_SECONDS} s")
    result = json.loads(kept.read_text())
    if "failure" in result:
        raise NoRecipe(result["failure"])
    return dict(result)


def run_file(recipe: Recipe, rank: int) -> Path:
    """Where the run of one rank is kept: a recipe that changes is another run, a checkout elsewhere is not, and neither
    are more microbatches of the same kind."""
    settings = {**dataclasses.asdict(recipe), "rank": rank}
    del settings["further_passes"]
    text = json.dumps(settings, sort_keys=True).replace(str(ROOT), "")
    return work_folder() / "runs" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


NOT_COMPILED = ("could not be compiled", "failed to run")
"""What vramcast says of a program that compiles code which it cannot follow."""


def run(recipe: str, rank: int, python: str, kept: Path, timeout: float = TIMEOUT_SECONDS) -> None:
    """What comes out is written to `kept`. Where compiling needs a card, the process is shown the one that
    `VRAMCAST_VISIBLE` names; else the code runs as it is, which the result says."""
    _run_once(recipe, rank, python, kept, timeout, {})
    if "VRAMCAST_VISIBLE" in os.environ and _failed(kept):
        visible = {"CUDA_VISIBLE_DEVICES": os.environ["VRAMCAST_VISIBLE"]}
        _run_once(recipe, rank, python, kept, timeout, visible)
    if _failed(kept):
        _run_once(recipe, rank, python, kept, timeout, {"TORCHDYNAMO_DISABLE": "1"})
        result = json.loads(kept.read_text())
        kept.write_text(json.dumps({**result, "assumed": "the code is not compiled"}))


def _failed(kept: Path) -> bool:
    return kept.exists() and any(text in kept.read_text() for text in NOT_COMPILED)


def _run_once(recipe: str, rank: int, python: str, kept: Path, timeout: float, more: dict[str, str]) -> None:
    packages = json.loads(recipe)["python_path"]
    found = ":".join((*packages, str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "PYTHONPATH": found, "PYTHONDONTWRITEBYTECODE": "1", **more}
    command = [python, "-m", "lab.published.run_one", str(rank)]
    try:
        done = subprocess.run(
            command, input=recipe, capture_output=True, text=True, env=environment, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return
    kept.parent.mkdir(parents=True, exist_ok=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "Error" in line or "Failed" in line or "Predict" in line]
        failure = {"failure": errors[-1][:300] if errors else f"exit {done.returncode}", "log": done.stderr[-6000:]}
        kept.write_text(json.dumps(failure))
    else:
        kept.write_text(done.stdout)


def _show(row: dict[str, str], result: dict[str, Any]) -> None:
    if result.get("failure"):
        print(f"{row['row']:>5} {row['model'][:60]:60} {result['failure'][:150]}", flush=True)
        return
    published = float(row.get("peak_memory_gib") or 0)
    key = "reserved" if "reserved" in row.get("memory_kind", "") else "allocated"
    error = 100 * (result[key] / 2**30 / published - 1) if published else 0
    print(f"{row['row']:>5} {row['model'][:60]:60} {row['gpu'][:6]:6} {error:+7.2f} %  {result['took']} s", flush=True)


if __name__ == "__main__":
    main()
