"""Fifty users at once: each opens the page, traces, moves sliders. `python -m lab.browser.users [N]`."""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lab.browser.serving import cpu_seconds, served

_MOVES = 20
_JOBS = (
    {"job": "example:fno", "height": 64, "width": 64},
    {"job": "example:transformer-small", "sequence": 128},
    {"job": "example:unet", "height": 64, "width": 64},
)


def main() -> None:
    users = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    with served() as (address, server):
        began = time.monotonic()
        with ThreadPoolExecutor(users) as pool:
            found = list(pool.map(lambda number: _user(address, number), range(users)))
        wall, used = time.monotonic() - began, cpu_seconds(server)
    times = sorted(one for user in found for one in user[0])
    errors = [error for user in found for error in user[1]]
    print(
        f"{users} users, {len(times)} answers in {wall:.0f} s, {used:.0f} s of CPU in the server; a move: median "
        f"{statistics.median(times):.2f} s, slowest {times[-1]:.2f} s; {len(errors)} errors {errors[:3]}"
    )


def _user(address: str, number: int) -> tuple[list[float], list[str]]:
    chance, times, errors = random.Random(number), [], []
    state = dict(_JOBS[number % len(_JOBS)], gpu="rtx-4090", batch=4 + number % 2)
    try:
        with urllib.request.urlopen(address, timeout=60) as page:
            page.read()
        _ask(address, "exact", state)
        for _ in range(_MOVES):
            began = time.monotonic()
            _ask(address, "quick", state | {"batch": chance.randint(2, 60)})
            times.append(time.monotonic() - began)
    except (urllib.error.URLError, OSError, ValueError) as error:
        errors.append(repr(error))
    return times, errors


def _ask(address: str, what: str, state: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"{address}api/{what}", json.dumps(state).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=400) as answer:
        return json.load(answer)


if __name__ == "__main__":
    main()
