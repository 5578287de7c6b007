"""Time `vramcast diagnose` on generated logs of many lines, each in a fresh process.

python -m lab.comparing.log_benchmark           # 10 million lines of three formats; bar: 10 s, 256 MiB
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

SECONDS_BAR = 10.0
RSS_BAR_BYTES = 256 << 20
_SAVING_EVERY = 1000


def seconds_of(step: int) -> float:
    """Half a second, a little noise, and a slow step at each saving."""
    return 0.5 + step * 7919 % 1000 / 50_000 + (3.0 if step % _SAVING_EVERY == 0 else 0.0)


def step_line(step: int, steps: int) -> str:
    seconds = seconds_of(step)
    return f"step {step}/{steps} | loss 0.{step % 9973:04d} | {6 / seconds:.2f} samples/s | step_time={seconds:.4f}s\n"


def key_value_line(step: int, steps: int) -> str:
    seconds = seconds_of(step)
    return f"step={step} loss=0.{step % 9973:04d} lr=1e-4 step_time={seconds * 1e3:.1f}ms data_time=0.{step % 7}ms\n"


def json_line(step: int, steps: int) -> str:
    return (
        f'{{"step": {step}, "loss": 0.{step % 9973:04d}, "step_time": {seconds_of(step):.4f}, "data_time": 0.0001}}\n'
    )


FORMATS: dict[str, Callable[[int, int], str]] = {
    "lines of steps": step_line,
    "key=value": key_value_line,
    "JSON lines": json_line,
}


def lines(make: Callable[[int, int], str], steps: int) -> Iterator[str]:
    for step in range(1, steps + 1):
        yield make(step, steps)
        if step % _SAVING_EVERY == 0:
            yield f"Saving model checkpoint to out/{step}\n"


def measure(log: Path) -> tuple[float, float, int]:
    """Seconds by the clock and of the processor, and bytes of memory."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "vramcast", "diagnose", str(log), "--json"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as child:
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"diagnose ended with {child.returncode}")
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=10_000_000)
    options = parser.parse_args(arguments)
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "train.log"
        for name, make in FORMATS.items():
            with log.open("w", encoding="utf-8") as file:
                file.writelines(lines(make, options.lines))
            size = log.stat().st_size
            wall, processor, rss = measure(log)
            late = wall > SECONDS_BAR or rss > RSS_BAR_BYTES
            missed += late
            print(
                f"{name:<16}{options.lines:>12,} steps {size / 2**20:7.0f} MiB {wall:6.2f} s ({processor:.2f} s of the "
                f"processor), {rss / 2**20:.0f} MiB of RAM{'  MISSED' if late else ''}",
                flush=True,
            )
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
