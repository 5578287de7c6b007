"""A real Chromium: Playwright drives the system's. Without either, these tests are skipped."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next((found for name in _NAMES if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


class Tab:
    """A page, and everything that went wrong in it."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.errors: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: message.type in ("error", "warning") and self.errors.append(message.text))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    def wait(self, expression: str, seconds: float = 60.0) -> None:
        """Until it holds. Playwright's own wait evaluates text in the page, which the page's policy refuses."""
        ends = time.monotonic() + seconds
        while not self.page.evaluate(expression):
            assert time.monotonic() < ends, f"{expression} never held"
            self.page.wait_for_timeout(50)

    def values(self, selector: str) -> list[int]:
        """The figures there, to the byte."""
        found = self.page.eval_on_selector_all(f"{selector} data", "all => all.map(one => one.value)")
        return [int(value) for value in found]

    def parts(self, within: str) -> dict[str, int]:
        """The account that is shown: kind → bytes."""
        rows = self.page.eval_on_selector_all(
            f"{within} tbody tr",
            "rows => rows.map(row => [row.querySelector('[data-part]').dataset.part, row.querySelector('data').value])",
        )
        return {name: int(value) for name, value in rows}


@pytest.fixture(params=["light", "dark"])
def tab(browser: Any, request: pytest.FixtureRequest) -> Iterator[Tab]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme=request.param)
    yield Tab(context.new_page())
    context.close()
