"""Run the zoo: `python -m lab.zoo run`, `measure`, `bundle`, `unpack`, `page`, `list`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.zoo import bundle, page, step_times
from lab.zoo.execution import GIB, Record, carry_out, measure, predict, prepare_anew, time_steps
from lab.zoo.manifest import ManifestError, Script, choose, load
from lab.zoo.records import MEASURED, PREDICTED, Records
from lab.zoo.workplace import checkout, missing_packages, prepare, workplace

_USUAL_MEMORY = 8 * GIB
_BESIDE = 1 * GIB
"""Context and kernels of a process, beside what PyTorch reserves."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.zoo", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, explanation in (
        ("list", "the scripts and where they come from"),
        ("fetch", "get the repositories"),
        ("prepare", "copy the repository and generate the data, and print the command"),
        ("run", "predict each with `vramcast run` and keep how it came out"),
        ("measure", "measure each on the GPU of this machine"),
        ("times", "time the steps of each on the GPU of this machine, one script at a time"),
        ("timed", "keep what `times` left in folders, and show steps predicted beside measured"),
        ("bundle", "put scripts and packages into .carry/zoo, for a GPU machine without a network"),
        ("unpack", "on that machine: lay out what the bundle holds"),
        ("page", "write docs/lab/zoo.md from what was kept"),
    ):
        command = verbs.add_parser(verb, help=explanation)
        if verb in ("list", "fetch", "prepare", "run", "measure", "times", "bundle"):
            command.add_argument("names", nargs="*", metavar="NAME", help="a script, or how several begin")
        if verb == "timed":
            command.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
        if verb == "times":
            command.add_argument("--out", type=Path, required=True, help="a folder for a record of each")
            command.add_argument("--profile", action="store_true", help="one more step, profiled")
        if verb in ("run", "measure", "times"):
            command.add_argument("--jobs", type=int, default=1, help="how many at a time")
            command.add_argument("--missing", action="store_true", help="only those that have no record yet")
        if verb == "run":
            command.add_argument("--gpu", default="h200")
            command.add_argument("--traces", type=Path, metavar="FOLDER", help="keep the trace of each here")
            command.add_argument("--out", type=Path, default=PREDICTED)
        if verb in ("measure", "times"):
            command.add_argument("--limit", type=float, default=120, metavar="GIB", help="memory of all at a time")
        if verb == "measure":
            command.add_argument("--out", type=Path, default=MEASURED)
        if verb in ("bundle", "unpack"):
            command.add_argument("--folder", type=Path, default=bundle.FOLDER, help="where the bundle is")
        if verb == "bundle":
            command.add_argument("--wheels", type=Path, metavar="FOLDER", help="packages to take along")
    args = parser.parse_args(arguments)
    try:
        scripts = choose(load(), getattr(args, "names", ()))
    except ManifestError as error:
        print(f"zoo: {error}", file=sys.stderr)
        return 2
    return int(_VERBS[args.verb](scripts, args) or 0)


def _list(scripts: list[Script], args: argparse.Namespace) -> None:
    for script in scripts:
        print(f"{script.name:32} {script.kind:14} {script.style:12} {script.repository.name} {script.path}")


def _fetch(scripts: list[Script], args: argparse.Namespace) -> None:
    for repository in {script.repository.name: script.repository for script in scripts}.values():
        print(checkout(repository))


def _prepare(scripts: list[Script], args: argparse.Namespace) -> None:
    for script in scripts:
        prepare(script)
        place = workplace(script)
        print(f"cd {place.folder} && vramcast run {place.script} {' '.join(place.arguments)}")


def _run(scripts: list[Script], args: argparse.Namespace) -> None:
    records = Records(args.out)
    carry_out(
        _wanted(scripts, records, args), lambda script: predict(script, args.gpu, args.traces), _keeper(records),
        at_a_time=args.jobs,
    )  # fmt: skip


def _measure(scripts: list[Script], args: argparse.Namespace) -> None:
    records = Records(args.out)
    carry_out(
        _wanted(scripts, records, args), measure, _keeper(records), at_a_time=args.jobs, memory_bytes=_memory,
        limit_bytes=int(args.limit * GIB),
    )  # fmt: skip


def _times(scripts: list[Script], args: argparse.Namespace) -> None:
    args.out.mkdir(parents=True, exist_ok=True)
    records = Records(args.out / "outcomes.json")
    wanted = _wanted(scripts, records, args)
    prepared: list[Script] = []

    def keep(script: Script, record: Record) -> None:
        if record["outcome"] == "prepared":
            prepared.append(script)
        else:
            _keeper(records)(script, record)

    # Before any is timed: generating data would disturb it.
    carry_out(wanted, prepare_anew, keep, at_a_time=os.cpu_count() or 1)
    carry_out(
        prepared, lambda script: time_steps(script, args.out, args.profile), _keeper(records),
        at_a_time=args.jobs, memory_bytes=_memory, limit_bytes=int(args.limit * GIB),
    )  # fmt: skip


def _timed(scripts: list[Script], args: argparse.Namespace) -> None:
    step_times.keep(args.folders)
    print(step_times.told())


def _memory(script: Script) -> int:
    """What the script will take of the card."""
    predicted = Records(PREDICTED).by_script.get(script.name, {})
    return _BESIDE + max(int(predicted.get("peak_reserved_bytes") or _USUAL_MEMORY), script.room * GIB)


def _wanted(scripts: list[Script], records: Records, args: argparse.Namespace) -> list[Script]:
    """The scripts asked for whose packages are here; the others are named."""
    wanted = []
    for script in scripts:
        if args.missing and script.name in records.by_script:
            continue
        lacking = missing_packages(script)
        if lacking:
            print(f"{script.name:32} left out: {', '.join(lacking)} not installed", flush=True)
        else:
            wanted.append(script)
    return wanted


def _keeper(records: Records) -> Callable[[Script, Record], None]:
    def keep(script: Script, record: Record) -> None:
        records.keep(script.name, record)
        size = record.get("peak_reserved_bytes")
        told = f"{size / GIB:.3f} GiB" if size is not None else str(record.get("message", "")).splitlines()[:1]
        print(f"{script.name:32} {record['outcome']:16} {record.get('seconds', 0):6} s  {told}", flush=True)

    return keep


_VERBS: dict[str, Callable[[list[Script], argparse.Namespace], Any]] = {
    "list": _list,
    "fetch": _fetch,
    "prepare": _prepare,
    "run": _run,
    "measure": _measure,
    "times": _times,
    "timed": _timed,
    "bundle": lambda scripts, args: bundle.make(scripts, args.wheels, args.folder),
    "unpack": lambda scripts, args: bundle.unpack(args.folder),
    "page": lambda scripts, args: page.write(scripts),
}

if __name__ == "__main__":
    sys.exit(main())
