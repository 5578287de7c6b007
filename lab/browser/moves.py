"""Time of a slider's move, from the input to the frame that shows verdict and chart: `python -m lab.browser.moves`.

On a machine that others use, `chrt --rr 1 python -m lab.browser.moves` keeps their waiting out of it.
"""

from __future__ import annotations

import os
import statistics

from lab.browser.serving import EXAMPLE, chromium, cpu_seconds, served

_MOVES = 80
_MOVE = """async (value) => {
  const slider = document.querySelector('[name=slider-batch]'), verdict = document.getElementById('verdict');
  delete verdict.dataset.milliseconds;
  const drawn = new Promise((resolve) => new MutationObserver((_, self) => {
    if (verdict.dataset.milliseconds) { self.disconnect(); resolve(); }
  }).observe(verdict, { attributes: true }));
  slider.value = value;
  const began = performance.now();
  slider.dispatchEvent(new Event('input', { bubbles: true }));
  await drawn;
  return [performance.now() - began, verdict.dataset.kind];
}"""
_DRAG = """async (frames) => {
  const slider = document.querySelector('[name=slider-batch]');
  let drawn = 0;
  const seen = new MutationObserver(() => drawn++);
  seen.observe(document.getElementById('figures'), { childList: true });
  const began = performance.now();
  for (let i = 0; i < frames; i++) {
    slider.value = 200 + (i * 3) % 600;
    slider.dispatchEvent(new Event('input', { bubbles: true }));
    await new Promise((resolve) => requestAnimationFrame(resolve));
  }
  seen.disconnect();
  return 1000 * drawn / (performance.now() - began);
}"""
"""A slider that does not rest: the pictures a second."""


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
        dragged = page.evaluate(_DRAG, 180)
    times = sorted(milliseconds for milliseconds, _ in found)
    print(
        f"{_MOVES} moves ({', '.join(sorted({kind for _, kind in found}))}): median {statistics.median(times):.0f} ms, "
        f"95th percentile {times[int(0.95 * _MOVES) - 1]:.0f} ms; the server used {1000 * used / _MOVES:.0f} ms of CPU "
        f"a move; {dragged:.0f} pictures a second while it is dragged; load of the machine {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
