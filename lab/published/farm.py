"""Run many recipes at once, on a machine with many cores.

    python -m lab.published.farm list > jobs.json       where the mirrors of the repositories are
    python -m lab.published.farm run jobs.json OUT [PROCESSES] [SECONDS]

The second needs the checkouts in the same folder and writes a file for each run, as `predict` keeps them.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lab.published.predict import RECIPES, read, run, run_file
from lab.published.recipe import NoRecipe


def jobs() -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for what in ("memory", "speed"):
        for row in read(f"drawn_{what}.csv"):
            try:
                recipe = RECIPES[row["by"]](row)
            except (NoRecipe, KeyError) as error:
                print(row["row"], error, file=sys.stderr)
                continue
            for rank in recipe.ranks:
                kept = run_file(recipe, rank)
                if not kept.exists():
                    found[kept.name] = {"recipe": dataclasses.asdict(recipe), "rank": rank, "file": kept.name}
    return list(found.values())


def run_all(path: Path, out: Path, processes: int, seconds: float) -> None:
    began = time.time()

    def one(job: dict[str, Any]) -> None:
        left = began + seconds - time.time()
        if left > 1:
            run(json.dumps(job["recipe"]), job["rank"], sys.executable, out / job["file"], left)

    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(one, json.loads(path.read_text())))


def main() -> None:
    if sys.argv[1] == "list":
        json.dump(jobs(), sys.stdout)
    else:
        processes, seconds = (*sys.argv[4:], *("14", "220")[len(sys.argv[4:]) :])
        run_all(Path(sys.argv[2]), Path(sys.argv[3]), int(processes), float(seconds))


if __name__ == "__main__":
    main()
