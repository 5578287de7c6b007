"""Predict and measure the practice scripts: `python -m lab.practice run`, `measure`, `table`."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lab.zoo.records import Records

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"
SOURCE = HERE.parents[1] / "src"
PREDICTED = HERE / "predicted.json"
MEASURED = HERE / "measured.json"
GIB = 1 << 30
_LIMIT_SECONDS = 600

Record = dict[str, Any]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.practice", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, explanation in (
        ("run", "predict each with `vramcast run --whole`"),
        ("measure", "measure each on the GPU of this machine"),
        ("table", "show predicted beside measured"),
    ):
        command = verbs.add_parser(verb, help=explanation)
        command.add_argument("names", nargs="*", metavar="NAME")
        if verb != "table":
            command.add_argument("--jobs", type=int, default=1, help="how many at a time")
        if verb == "run":
            command.add_argument("--out", type=Path, default=PREDICTED)
        if verb == "measure":
            command.add_argument("--out", type=Path, default=MEASURED)
            command.add_argument("--history", type=Path, help="keep the allocator's events in this folder")
    args = parser.parse_args(arguments)
    known = {path.stem: path for path in sorted(SCRIPTS.glob("*.py"))}
    unknown = [name for name in args.names if name not in known]
    if unknown:
        print(f"practice: there is no script {', '.join(unknown)} in {SCRIPTS.name}/", file=sys.stderr)
        return 2
    scripts = [known[name] for name in args.names or known]
    if args.verb == "table":
        return _table(scripts)
    work = predict if args.verb == "run" else lambda script: measure(script, args.history)
    _carry_out(scripts, work, Records(args.out), args.jobs)
    return 0


def predict(script: Path) -> Record:
    """What `vramcast run` says of the whole script on an H200."""
    command = [sys.executable, "-m", "vramcast", "run", "--gpu", "h200", "--whole", "--json", "--traceback"]
    code, output, error, seconds = _outcome([*command, str(script)])
    record: Record = {"exit_code": code, "seconds": seconds, "gpu": "h200"}
    if code not in (0, 1):
        return record | {"outcome": "not predicted", "message": _without_folders(error)[-1500:]}
    document = json.loads(output)
    # A measurement has the attempts that were refused memory, too.
    peaks = [document, *document["account"]["steps"]]
    return record | {
        "outcome": "answered",
        "peak_allocated_bytes": max(peak["peak_allocated_bytes"] for peak in peaks),
        "peak_reserved_bytes": max(peak["peak_reserved_bytes"] for peak in peaks),
        "reserved_interval_bytes": document["reserved_interval_bytes"],
        "steps": document["steps"],
        "notes": [_without_folders(note["text"]) for note in document["notes"]],
        "torch": document["versions"].get("torch"),
    }


def measure(script: Path, history: Path | None = None) -> Record:
    """What the script takes on the GPU of this machine."""
    command = [sys.executable, str(HERE / "on_card.py"), str(script)]
    if history is not None:
        history.mkdir(parents=True, exist_ok=True)
        command.append(str(history / f"{script.stem}.json.gz"))
    code, output, error, seconds = _outcome(command)
    lines = output.splitlines()
    if not lines or not lines[-1].startswith("{"):
        return {"outcome": "failed", "exit_code": code, "seconds": seconds, "message": _without_folders(error)[-1500:]}
    record: Record = json.loads(lines[-1])
    return record | {"exit_code": code, "seconds": seconds}


def _without_folders(text: str) -> str:
    """Paths as the repository or the package has them."""
    return re.sub(r"/(?:\S+/)?(site-packages|lab|src)/", r"\1/", text)


def _outcome(command: list[str]) -> tuple[int | None, str, str, float]:
    """Exit code (none where the time ran out), standard output, standard error, seconds."""
    path = os.pathsep.join([str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])])
    started = time.monotonic()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_LIMIT_SECONDS, env={**os.environ, "PYTHONPATH": path}
        )
    except subprocess.TimeoutExpired:
        return None, "", "ran out of time", _LIMIT_SECONDS
    return done.returncode, done.stdout, done.stderr, round(time.monotonic() - started, 1)


def _carry_out(scripts: list[Path], work: Callable[[Path], Record], records: Records, at_a_time: int) -> None:
    def one(script: Path) -> None:
        record = work(script)
        records.keep(script.stem, record)
        size = record.get("peak_reserved_bytes")
        told = f"{size / GIB:.3f} GiB" if size is not None else str(record.get("message", ""))[-300:]
        print(f"{script.stem:32} {record['outcome']:14} {record.get('seconds', 0):6} s  {told}", flush=True)

    with ThreadPoolExecutor(at_a_time) as pool:
        list(pool.map(one, scripts))


def _table(scripts: list[Path]) -> int:
    predicted, measured = Records(PREDICTED).by_script, Records(MEASURED).by_script
    for script in scripts:
        guess, truth = predicted.get(script.stem, {}), measured.get(script.stem, {})
        print(f"{script.stem:32} {_sizes(guess)} {_sizes(truth)} {_difference(guess, truth)}")
    return 0


def _sizes(record: Record) -> str:
    if record.get("outcome") not in ("answered", "measured"):
        return f"{record.get('outcome', ''):>31}"
    return f"{record['peak_allocated_bytes']:15} {record['peak_reserved_bytes']:15}"


def _difference(guess: Record, truth: Record) -> str:
    if guess.get("outcome") != "answered" or truth.get("outcome") != "measured":
        return ""
    errors = [guess[name] / truth[name] - 1 for name in ("peak_allocated_bytes", "peak_reserved_bytes")]
    return " ".join(f"{error:+8.3%}" if error else "       0" for error in errors)


if __name__ == "__main__":
    sys.exit(main())
