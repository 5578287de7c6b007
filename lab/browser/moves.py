"""Time of a slider's move, from the input to the frame that shows verdict and chart: `python -m lab.browser.moves`."""

from __future__ import annotations

import os
import statistics

from lab.browser.serving import EXAMPLE, chromium, cpu_seconds, served

_MOVES = 80
_MOVE = """async (value) => {
  const slider = document.querySelector('[name=slider-batch]'), verdict = document.getElementById('verdict');
  delete verdict.dataset.milliseconds;
  slider.value = value;
  const began = performance.now();
  slider.dispatchEvent(new Event('input', { bubbles: true }));
  while (!verdict.dataset.milliseconds) await new Promise((resolve) => requestAnimationFrame(resolve));
  return [performance.now() - began, verdict.dataset.kind];
}"""


def main() -> None:
    with served() as (address, server), chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(address + EXAMPLE)
        page.wait_for_selector("#verdict[data-kind=traced]", timeout=120_000)
        page.wait_for_timeout(10_000)  # a second batch is traced
        before = cpu_seconds(server)
        found = []
        for i in range(_MOVES):
            found.append(page.evaluate(_MOVE, 200 + i * 37 % 600))
            page.wait_for_timeout(30)
        used = cpu_seconds(server) - before
    times = sorted(milliseconds for milliseconds, _ in found)
    print(
        f"{_MOVES} moves ({', '.join(sorted({kind for _, kind in found}))}): median {statistics.median(times):.0f} ms, "
        f"95th percentile {times[int(0.95 * _MOVES) - 1]:.0f} ms; the server used {1000 * used / _MOVES:.0f} ms of CPU "
        f"a move; load of the machine {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
