"""Accessibility of the page and of reports, by axe-core: `python -m lab.browser.axe axe.min.js [REPORT.html ...]`.

axe-core is no part of this project: `npm pack axe-core` brings `package/axe.min.js`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lab.browser.serving import EXAMPLE, chromium, served

_RUN = """async () => (await axe.run()).violations.map(
  (one) => [one.impact, one.id, one.nodes.map((node) => node.target.join(' '))])"""
_DOES_NOT_FIT = EXAMPLE.replace("batch=4", "batch=16")


def main() -> None:
    script, reports = Path(sys.argv[1]).read_text(encoding="utf-8"), sys.argv[2:]
    serious = 0
    with chromium() as browser:
        for name, page in _opened(browser, reports):
            page.evaluate(script)
            found = page.evaluate(_RUN)
            serious += sum(impact in ("serious", "critical") for impact, _, _ in found)
            print(f"{name}: {len(found)} violations")
            for impact, rule, places in found:
                print(f"  {impact}: {rule}: {', '.join(places[:4])}")
    print(f"serious or critical: {serious}")
    sys.exit(bool(serious))


def _opened(browser: Any, reports: list[str]) -> Iterator[tuple[str, Any]]:
    for language in ("en", "zh"):
        with served(language) as (address, _):
            for look, page in _looks(browser):
                for name, state in (("the page", EXAMPLE), ("the page, does not fit", _DOES_NOT_FIT)):
                    page.goto("about:blank")
                    page.goto(address + state)
                    page.wait_for_selector("#pictures .kinds table", timeout=120_000)
                    page.wait_for_timeout(300)
                    yield f"{name}, {language}, {look}", page
    for look, page in _looks(browser):
        for report in reports:
            page.goto(Path(report).resolve().as_uri())
            page.wait_for_selector("h1")
            page.wait_for_timeout(300)
            yield f"{Path(report).name}, {look}", page


def _looks(browser: Any) -> Iterator[tuple[str, Any]]:
    for theme in ("light", "dark"):
        for width in (390, 1280):
            # The page's own policy would refuse a script that is not its own.
            context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme, bypass_csp=True)
            yield f"{theme}, {width} px", context.new_page()
            context.close()


if __name__ == "__main__":
    main()
