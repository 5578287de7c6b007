"""Measure many workloads on a real card.

    python measure_all.py memory RESULT_FOLDER SECONDS [NAME ...]     side by side
    python measure_all.py times RESULT_FOLDER SECONDS [NAME ...]      compiled side by side, timed one after the other

Each runs in a process of its own (measure.py). Both keep what was compiled in $COMPILE_CACHES, which is to be empty
before memory is measured and makes times quick to come by afterwards. What is not done after SECONDS is ended.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
AT_ONCE = int(os.environ.get("AT_ONCE", "14"))


class Measurement:
    def __init__(self, result: Path, seconds: float, names: list[str], turns: Path | None) -> None:
        result.mkdir(parents=True, exist_ok=True)
        self.result, self.turns = result, turns
        self._begin = time.time()
        self._seconds = seconds
        self._waiting = list(names)
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def _reached(self, kind: str) -> set[str]:
        return set() if self.turns is None else {path.stem for path in self.turns.glob(f"*.{kind}")}

    def _start(self, name: str) -> None:
        command = [sys.executable, str(HERE / "measure.py"), name, str(self.result)]
        if self.turns is not None:
            command.append(str(self.turns))
        with (self.result / f"{name}.log").open("a") as log:
            self._running[name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=HERE)

    def wait(self, share: float, kind: str) -> None:
        """Start what is waiting, until all have reached this point or ended, or this share of the time is over."""
        while time.time() < self._begin + share * self._seconds:
            reached = self._reached(kind)
            busy = [n for n, process in self._running.items() if process.poll() is None and n not in reached]
            while self._waiting and len(busy) < AT_ONCE:
                busy.append(self._waiting.pop(0))
                self._start(busy[-1])
            if not busy:
                break
            time.sleep(0.1)
        print(f"{time.time() - self._begin:.0f} s: {len(self._reached(kind))} {kind}", flush=True)

    def end(self, kind: str = "") -> None:
        """End the processes that have not reached this point."""
        reached = self._reached(kind)
        late = [n for n, process in self._running.items() if process.poll() is None and n not in reached]
        for name in late:
            self._running[name].kill()
        print("ended:", *late, "not started:", *self._waiting, flush=True)
        self._waiting.clear()


def main(what: str, result: Path, seconds: float, names: list[str]) -> None:
    if what == "memory":
        measurement = Measurement(result, seconds, names, None)
        measurement.wait(1.0, "done")
        measurement.end()
        return
    with tempfile.TemporaryDirectory() as folder:
        turns = Path(folder)
        measurement = Measurement(result, seconds, names, turns)
        measurement.wait(0.6, "ready")
        measurement.end("ready")
        (turns / "time").touch()
        measurement.wait(0.9, "timed")
        (turns / "profile").touch()
        measurement.wait(1.0, "profiled")
        measurement.end()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), sys.argv[4:])
