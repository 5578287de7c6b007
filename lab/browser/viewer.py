"""PyTorch's own memory viewer opens exported snapshots: `python -m lab.browser.viewer MemoryViz.js d3.min.js FILE ...`.

Neither script is a part of this project: the viewer is torch/utils/viz/MemoryViz.js of PyTorch's repository, and
`npm pack d3@7` brings `package/dist/d3.min.js`. The page is the one that torch.cuda._memory_viz writes; what it would
load from elsewhere is answered with these two.
"""

from __future__ import annotations

import pickle
import re
import sys
from pathlib import Path
from typing import Any

from torch.cuda import _memory_viz

from lab.browser.serving import chromium

_STATE = "Allocator State History"
_SHOWN = """() => ({
  events: document.querySelectorAll('pre').length, boxes: document.querySelectorAll('svg rect, svg polygon').length,
  first: [...document.querySelectorAll('pre')].map((one) => one.textContent).find((text) => text.startsWith('alloc')),
})"""


def main() -> None:
    viewer, d3 = (Path(argument).read_text(encoding="utf-8") for argument in sys.argv[1:3])
    with chromium() as browser:
        for file in map(Path, sys.argv[3:]):
            snapshot = pickle.loads(file.read_bytes())  # of this machine's own `vramcast predict --export`
            entries = sum(map(len, snapshot["device_traces"]))
            timeline = _opened(browser, viewer, d3, _memory_viz.trace_plot(snapshot))
            states = _opened(
                browser, viewer, d3, _memory_viz.trace_plot(snapshot).replace("Active Memory Timeline", _STATE)
            )
            print(
                f"{file.name}: {entries:,} entries; the timeline draws {timeline['boxes']:,} boxes; the history lists "
                f"{states['events']:,} events and draws {states['boxes']:,} boxes, the first: {states['first']!r}"
            )


def _opened(browser: Any, viewer: str, d3: str, html: str) -> dict[str, Any]:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    names = sorted(
        set(re.findall(r"\bd3\.(\w+)", viewer)) | {"axisLeft", "scaleLinear", "zoom", "zoomIdentity", "brushX"}
    )
    module = f"{d3}\nexport const {{ {', '.join(names)} }} = globalThis.d3;"

    def answer(route: Any) -> None:
        url = route.request.url
        if url == "http://viewer.local/":
            route.fulfill(body=html, content_type="text/html")
        else:
            script = viewer if url.endswith("MemoryViz.js") else module
            route.fulfill(body=script, content_type="text/javascript", headers={"Access-Control-Allow-Origin": "*"})

    page.route("**/*", answer)
    page.goto("http://viewer.local/")
    page.wait_for_selector("svg", timeout=60_000)
    page.wait_for_timeout(1000)
    found: dict[str, Any] = page.evaluate(_SHOWN)
    page.close()
    if problems:
        sys.exit(f"the viewer says: {problems}")
    return found


if __name__ == "__main__":
    main()
