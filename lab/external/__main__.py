"""Predict the drawn rows and write what came out to a file: `python -m lab.external --out rows.json`.

A process of its own, so that it can be given the libraries in the versions the authors used (PYTHONPATH).
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from lab.external import rows
from lab.external.evaluate import predict_rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="one source: " + ", ".join(rows.FILES))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=rows.DRAW_SEED, help="draws another sample")
    options = parser.parse_args()
    folder = rows.folder()
    if folder is None:
        print("the published rows are not here (set VRAMCAST_EXTERNAL)", file=sys.stderr)
        return 2
    drawn = [row for row in rows.draw(rows.read(folder), options.seed) if options.only in ("", row.source)]
    started = time.monotonic()
    predictions = []
    for index, predicted in enumerate(predict_rows(drawn, options.jobs), start=1):
        predictions.append(asdict(predicted))
        if index % 50 == 0 or index == len(drawn):
            print(f"published rows: {index} of {len(drawn)}, {time.monotonic() - started:.0f} s", flush=True)
    versions = {name: importlib.import_module(name).__version__ for name in ("torch", "timm", "transformers")}
    options.out.write_text(json.dumps({"versions": versions, "rows": predictions}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
