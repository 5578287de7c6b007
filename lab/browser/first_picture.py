"""Time until a report's first picture is painted: `python -m lab.browser.first_picture REPORT.html ...`."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from lab.browser.serving import chromium

_OPENINGS = 5
_PAINTED = """() => new Promise((resolve) => {
  const look = () => document.querySelector('.chart canvas')
    ? requestAnimationFrame(() => setTimeout(() => resolve(performance.now()))) : setTimeout(look, 5);
  look();
})"""


def main() -> None:
    with chromium() as browser:
        for report in map(Path, sys.argv[1:]):
            times = []
            for _ in range(_OPENINGS):
                context = browser.new_context(viewport={"width": 1280, "height": 900})
                page = context.new_page()
                page.goto(report.resolve().as_uri(), wait_until="commit")
                times.append(page.evaluate(_PAINTED))
                context.close()
            middle, slowest = statistics.median(times), max(times)
            print(f"{report.name}: {report.stat().st_size:,} bytes, median {middle:.0f} ms, slowest {slowest:.0f} ms")


if __name__ == "__main__":
    main()
