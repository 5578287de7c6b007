"""Run a script of the zoo through `vramcast run` or, on a GPU, through `vramcast measure`, and say how it came out."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

from lab.zoo.manifest import Script
from lab.zoo.workplace import SOURCE, WORK, Workplace, cache_folder, workplace

GIB = 1 << 30
ROOT = SOURCE.parent
MEASURING_SECONDS = 240
TIMING_SECONDS = 240
"""Most of it is spent stopped, while others are timed."""
_KEPT_MESSAGE = 1500
_LENGTH = re.compile(r"((?:--?|\.)(?:n_?|num_|max[_-]|train[_-]|total[_-])*(?:epochs?|iters?|itrs|steps?)[= ])(\d+)")
"""Arguments that say how long a script trains; not in an environment, where schedules depend on them."""

Record = dict[str, Any]


def predict(script: Script, gpu: str, traces: Path | None = None) -> Record:
    """What `vramcast run` says of the script, and without the options that it is run with; the trace is left in the
    folder."""
    record = _predict(script, gpu, traces)
    if script.options:
        plain = _predict(replace(script, options=()), gpu, None)
        record["without_options_bytes"] = plain.get("made_steps_peak_reserved_bytes")
    return record


def _predict(script: Script, gpu: str, traces: Path | None) -> Record:
    arguments = ["run", "--gpu", gpu, "--steps", str(script.steps), *script.options, "--json", "--traceback"]
    if traces is not None:
        traces.mkdir(parents=True, exist_ok=True)
        arguments += ["--save", str(traces.resolve() / f"{script.name}.trace")]
    code, output, error, seconds = _vramcast(script, arguments, script.seconds)
    record: Record = {"exit_code": code, "seconds": round(seconds, 1), "gpu": gpu, "steps": script.steps}
    if code not in (0, 1):
        return record | {"outcome": _why_not(code), "message": _message(error)}
    document = json.loads(output)
    # The report's figures are of a few more steps than the script made: those are repeated in its trace.
    made = _in_both_runs(document["account"]["steps"][: document["steps"]], script)
    time_of_step = document.get("time")
    context_bytes = document["device_bytes"] - document["peak_reserved_bytes"]
    return record | {
        "outcome": "answered" if document["steps"] else "made no step",
        "fits": document["fits"],
        "peak_allocated_bytes": document["peak_allocated_bytes"],
        "peak_reserved_bytes": document["peak_reserved_bytes"],
        "made_steps_peak_allocated_bytes": max((step["peak_allocated_bytes"] for step in made), default=0),
        "made_steps_peak_reserved_bytes": max((step["peak_reserved_bytes"] for step in made), default=0),
        "device_bytes": document["device_bytes"],
        "touched_reserved_bytes": document["touched_bytes"] - context_bytes,
        "step_seconds": time_of_step and time_of_step["step_seconds"],
        "steps_made": document["steps"],
        "notes": [
            {"topic": note["topic"], "text": without_folders(note["text"]), "where": without_folders(note["where"])}
            for note in document["notes"]
        ],
        "torch": document["versions"].get("torch"),
    }  # fmt: skip


def _in_both_runs(made: list[dict[str, Any]], script: Script) -> list[dict[str, Any]]:
    """The steps that are measured too. The prediction counts the steps of all optimizers together and may wait for one
    more to see whether memory grows; with two optimizers there are twice as many as are measured."""
    several_optimizers = script.measured_steps is not None or len(made) >= 2 * script.steps
    return made if several_optimizers else made[: script.steps]


def measure(script: Script) -> Record:
    """What the script takes on the GPU of this machine, over as many steps as are predicted."""
    steps = script.measured_steps or script.steps
    code, output, error, seconds = _vramcast(script, ["measure", "--steps", str(steps), "--json"], MEASURING_SECONDS)
    record: Record = {"exit_code": code, "seconds": round(seconds, 1), "steps": steps}
    if code != 0:
        return record | {"outcome": _why_not(code), "message": _message(error)}
    run = json.loads(output)["run"]
    return record | {
        "outcome": "measured",
        "gpu": run["environment"].get("gpu"),
        "torch": run["environment"].get("torch"),
        "peak_allocated_bytes": run["peak_allocated_bytes"],
        "peak_reserved_bytes": run["peak_reserved_bytes"],
        "device_bytes": run["driver"].get("end_bytes"),
        "retries": run["num_alloc_retries"],
        "step_seconds": run["step_seconds"],
        "step_peaks_bytes": [step["peak_reserved_bytes"] for step in run["steps"]],
    }


def time_steps(script: Script, folder: Path, profiles: bool) -> Record:
    """Time the script's steps on the GPU of this machine; what was measured is left in the folder (`quiet.py`). The
    script is prepared already."""
    out = folder.resolve() / f"{script.name}.gz"
    command = [sys.executable, str(Path(__file__).with_name("quiet.py")), str(out), str(out.with_name("lock"))]
    command.append(str(int(profiles)))
    code, _, error, seconds = _in_its_place(_for_longer(script), command, TIMING_SECONDS)
    outcome = "measured" if out.exists() else _why_not(code)
    return {"outcome": outcome, "exit_code": code, "seconds": round(seconds, 1), "message": _message(error)}


def _for_longer(script: Script) -> Script:
    """The script with more steps and epochs than its arguments ask for, so that there is enough to time."""
    return replace(script, arguments=_LENGTH.sub(lambda found: f"{found[1]}{60 * int(found[2])}", script.arguments))


def carry_out(
    scripts: Iterable[Script],
    work: Callable[[Script], Record],
    record: Callable[[Script, Record], None],
    *,
    at_a_time: int = 1,
    memory_bytes: Callable[[Script], int] = lambda script: 0,
    limit_bytes: int = 0,
) -> None:
    """Do `work` for each script, several at a time as long as the sum of their memory stays below the limit."""
    room = _Room(limit_bytes)

    def guarded(script: Script) -> Record:
        needed = min(memory_bytes(script), limit_bytes)
        room.enter(needed)
        try:
            return work(script)
        except subprocess.CalledProcessError as error:  # a repository that cannot be had: the others go on
            message = error.stderr.decode(errors="replace").strip()[-_KEPT_MESSAGE:]
            return {"outcome": "not prepared", "exit_code": None, "message": message}
        finally:
            room.leave(needed)

    with ThreadPoolExecutor(at_a_time) as pool:
        started = {pool.submit(guarded, script): script for script in scripts}
        for done in as_completed(started):
            record(started[done], done.result())


class _Room:
    """Lets in what fits beside what is inside already; without a limit, everything."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._changed = threading.Condition()

    def enter(self, size: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._limit_bytes or self._used_bytes + size <= self._limit_bytes)
            self._used_bytes += size

    def leave(self, size: int) -> None:
        with self._changed:
            self._used_bytes -= size
            self._changed.notify_all()


def _vramcast(script: Script, arguments: list[str], limit_seconds: int) -> tuple[int | None, str, str, float]:
    prepare_anew(script)
    return _in_its_place(script, [sys.executable, "-m", "vramcast", *arguments], limit_seconds)


def prepare_anew(script: Script) -> Record:
    """In a process of its own: recipes may need packages that came with a bundle."""
    preparing = [sys.executable, "-m", "lab.zoo", "prepare", script.name]
    subprocess.run(
        preparing, check=True, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=_for_recipes()
    )
    return {"outcome": "prepared"}


def _in_its_place(script: Script, command: list[str], limit_seconds: int) -> tuple[int | None, str, str, float]:
    """Run the script, which is prepared, behind the words of a command.

    Returns exit code (none where the time ran out), standard output, standard error, seconds.
    """
    place = workplace(script)
    logs = cache_folder() / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    out_path, error_path = logs / f"{script.name}.out", logs / f"{script.name}.err"
    with out_path.open("wb") as out, error_path.open("wb") as error:
        started = time.monotonic()
        code = _run(place, command, limit_seconds, out, error)
        seconds = time.monotonic() - started
    return code, _read(out_path), _read(error_path), seconds


def _for_recipes() -> dict[str, str]:
    """Recipes, too, may need packages that came with a bundle."""
    path = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*path, str(cache_folder() / "packages")])}


def _run(place: Workplace, command: list[str], limit_seconds: int, out: Any, error: Any) -> int | None:
    process = subprocess.Popen(
        [*command, str(place.script), *place.arguments], cwd=place.folder, env=place.environment,
        stdin=subprocess.DEVNULL, stdout=out, stderr=error, start_new_session=True,
    )  # fmt: skip
    try:
        return process.wait(limit_seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        # Loader workers and whatever else the script has left behind.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _why_not(code: int | None) -> str:
    return {None: "ran out of time", 2: "refused", 3: "not predicted"}.get(code, "failed")


def _message(error: str) -> str:
    """The end of what was said, from vramcast's own words on where there are any."""
    start = error.rfind("vramcast: ")
    is_ours = "defect of vramcast" in error[max(start, 0) :]  # then the traceback before it is what matters
    text = error[start:] if start >= 0 and not is_ours else error
    return without_folders(text.strip())[-_KEPT_MESSAGE:]


def without_folders(text: str | None) -> str:
    """Paths as the repository or the package has them, without the folders of this machine."""
    own, temporary = re.escape(str(cache_folder())), re.escape(tempfile.gettempdir())
    return re.sub(rf"{own}/{WORK}/[^/\s]+/root/|\S*/site-packages/|{own}/|{temporary}/", "", text or "")
