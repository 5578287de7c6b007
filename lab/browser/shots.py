"""Screenshots of the page and of reports, to be looked at: `python -m lab.browser.shots FOLDER [REPORT.html ...]`.

Three widths, both themes; the page in both languages.
"""

from __future__ import annotations

import sys
from pathlib import Path

from lab.browser.serving import EXAMPLE, chromium, served

_WIDTHS = (390, 1280, 1920)
_THEMES = ("light", "dark")


def main() -> None:
    folder, reports = Path(sys.argv[1]), sys.argv[2:]
    folder.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        for language in ("en", "zh"):
            with served(language) as (address, _):
                for theme in _THEMES:
                    for width in _WIDTHS:
                        page = browser.new_page(viewport={"width": width, "height": 1000}, color_scheme=theme)
                        page.goto(address + EXAMPLE)
                        page.wait_for_selector("#pictures .kinds table", timeout=120_000)
                        page.wait_for_timeout(600)
                        page.screenshot(path=folder / f"page-{language}-{theme}-{width}.png", full_page=True)
                        page.close()
        for report in reports:
            for theme in _THEMES:
                for width in _WIDTHS:
                    page = browser.new_page(viewport={"width": width, "height": 1000}, color_scheme=theme)
                    page.goto(Path(report).resolve().as_uri())
                    page.wait_for_timeout(600)
                    page.screenshot(path=folder / f"{Path(report).stem}-{theme}-{width}.png", full_page=True)
                    page.close()


if __name__ == "__main__":
    main()
