"""Time compiling on a machine with a card, and the predictions of it beside each other on the same machine.

    python -m lab.compiled.measure_speed RESULT_FOLDER SECONDS [NAME ...]
    python -m lab.compiled.speed RESULT_FOLDER

Runs (measure.py) and predictions (predict.py) take turns, $AT_ONCE at a time, so that both share the processors with
the same number of others. Nothing of earlier runs is used: each has caches of its own. What is not done after SECONDS
is ended. The workloads are those of the record, unless some are named.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lab.compiled.speed import RECORD

HERE = Path(__file__).parent
AT_ONCE = int(os.environ.get("AT_ONCE", "5"))
Task = tuple[str, bool]
"""A workload, and whether it is predicted."""


def command(task: Task, result: Path) -> list[str]:
    name, predicted = task
    if predicted:
        return [sys.executable, "-m", "lab.compiled.predict", name]
    return [sys.executable, str(HERE / "measure.py"), name, str(result)]


def start(task: Task, result: Path, caches: str) -> subprocess.Popen[bytes]:
    name, predicted = task
    environment = {**os.environ, "COMPILE_CACHES": caches}
    if predicted:
        environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "src")])
    answer = (result / f"{name}.predicted") if predicted else (result / f"{name}.out")
    with answer.open("w") as out, (result / f"{name}.log").open("a") as log:
        where = HERE.parents[1] if predicted else HERE
        return subprocess.Popen(command(task, result), stdout=out, stderr=log, cwd=where, env=environment)


def main(result: Path, seconds: float, names: list[str]) -> None:
    result.mkdir(parents=True, exist_ok=True)
    end = time.time() + seconds
    waiting = [(name, predicted) for name in names or json.loads(RECORD.read_text()) for predicted in (False, True)]
    running: dict[Task, subprocess.Popen[bytes]] = {}
    with tempfile.TemporaryDirectory() as caches:
        while (waiting or running) and time.time() < end:
            running = {task: process for task, process in running.items() if process.poll() is None}
            while waiting and len(running) < AT_ONCE:
                task = waiting.pop(0)
                running[task] = start(task, result, caches)
            time.sleep(0.05)
        for process in running.values():
            process.kill()
            process.wait()
    print("ended:", *running, "not started:", *waiting)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), float(sys.argv[2]), sys.argv[3:])
