"""Ends every verb at random moments with SIGINT, SIGTERM and SIGKILL, and looks for what is left: processes, files.

    python -m lab.attacks.signals                      # 6 times each verb: about a hundred in all
    python -m lab.attacks.signals --times 100 advise   # one verb, more often
    python -m lab.attacks.signals --seed 7             # other moments; the same seed gives the same ones

Each verb runs in a session and a working folder of its own, with an empty TMPDIR. A moment is a share of the time that
the verb takes when it is left alone, so it lies in imports, in the work, in workers or in the report. Afterwards no
process that carries the marker in its environment may be left, TMPDIR must be empty and the working folder as it was,
the exit status must be the signal's (or the verb's own, where it was over before), and no traceback of vramcast's may
have been printed. Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lab import ROOT

MODEL = ROOT / "tests" / "jobs" / "configs" / "llama-tiny"
MARKER = "VRAMCAST_SIGNALS"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
GRACE_SECONDS = 3.0
TRAINING = """
import torch
from torch.utils.data import DataLoader

loader = DataLoader(torch.randn(1 << 16, 64), batch_size=4, num_workers=2)
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for batch in loader:
    model(batch.cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
UNTIDY = f"""
import subprocess
waits = subprocess.Popen(["sleep", "1000"])
{TRAINING}
    torch.save(model.state_dict(), "model.pt")
"""
"""For `run`, after which nothing of it may be left. On a real card it is the user's own run."""
LOG = '{"step": 1, "loss": 2.0, "step_time": 0.5, "data_time": 0.1}\n' * 400
GRID = f"jobs: ['{MODEL}']\ngpus: [rtx-4090, h100]\nset: {{sizes.batch: [1, 2, 4]}}\n"
GUARD = "import sys, vramcast; vramcast.guard(sys.argv[1], gpu='rtx-4090', on_overflow='warn')"

VERBS: Mapping[str, tuple[str, ...]] = {
    "predict": ("predict", "{model}", "--gpu", "rtx-4090", "--batch", "2"),
    "check": ("check", "{model}", "--gpu", "rtx-4090", "--batch", "2"),
    "advise": ("advise", "{model}", "--memory", "2GiB", "--batch", "1024"),
    "whatif": ("whatif", "{model}", "--gpu", "rtx-4090", "--batch", "2"),
    "plan": ("plan", "{model}", "--gpu", "rtx-4090", "--batch", "2"),
    "explain": ("explain", "{model}", "model", "--gpu", "rtx-4090", "--batch", "2"),
    "table": ("table", "{model}", "--gpu", "rtx-4090"),
    "run": ("run", "--gpu", "rtx-4090", "--steps", "30", "untidy.py"),
    "init": ("init", "{model}"),
    "show": ("show", "run.trace"),
    "measure": ("measure", "train.py"),
    "calibrate": ("calibrate",),
    "compare": ("compare", "run.trace", "run.trace"),
    "diagnose": ("diagnose", "log.jsonl"),
    "gpus": ("gpus", "--json"),
    "watch": ("watch", "--interval", "0.1", "--", "sleep", "0.5"),
    "sweep": ("sweep", "grid.yaml", "--out", "answers.csv"),
    "serve": ("serve", "--port", "18008"),
    "mcp": ("mcp",),
    "guard": (),
}
"""`guard` is the Python API's, whose worker must end with the program that calls it."""

MAY_WRITE = {"init": {"vramcast.yaml"}, "sweep": {"answers.csv"}}
"""What a verb is asked for is no leftover."""
ENDLESS_SECONDS = {"serve": 6.0}
"""Verbs that go on until they are told to end, and how long they are left alone."""


@dataclass(frozen=True)
class Ended:
    code: int
    said: str
    left: list[str]
    """What is wrong."""


def command(verb: str) -> list[str]:
    if verb == "guard":
        return [sys.executable, "-c", GUARD, os.fspath(MODEL)]
    return [sys.executable, "-m", "vramcast", *(word.format(model=MODEL) for word in VERBS[verb])]


@contextlib.contextmanager
def folder(trace: bytes) -> Iterator[Path]:
    """With everything that the verbs read."""
    with tempfile.TemporaryDirectory(prefix="vramcast signals ") as made:
        place = Path(made)
        (place / "tmp").mkdir()
        work = place / "work"
        work.mkdir()
        (work / "train.py").write_text(TRAINING)
        (work / "untidy.py").write_text(UNTIDY)
        (work / "log.jsonl").write_text(LOG)
        (work / "grid.yaml").write_text(GRID)
        (work / "run.trace").write_bytes(trace)
        yield work


def run(
    verb: str, work: Path, number: int | None, seconds: float, when: Callable[[int], bool] = lambda pid: False
) -> Ended:
    """Start a verb, send it a signal (None: leave it alone) after so long, or `when` its process is ready; and look."""
    marker = f"{MARKER}={uuid.uuid4().hex}"
    temporary = work.parent / "tmp"
    before = contents(work)
    environment = {**os.environ, "TMPDIR": os.fspath(temporary), "PYTHONPATH": search_path()}
    environment |= dict([marker.split("=")])
    errors = tempfile.TemporaryFile()
    process = subprocess.Popen(
        command(verb), cwd=work, env=environment, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors,
    )  # fmt: skip
    assert process.stdin is not None
    try:
        if number is None and verb == "mcp":
            process.stdin.close()
        until = time.monotonic() + seconds
        while process.poll() is None and not when(process.pid) and time.monotonic() < until:
            time.sleep(0.01)
        if process.poll() is None:
            # As a terminal does: Ctrl-C goes to all of them.
            (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number or signal.SIGKILL)
        process.wait(60)
    finally:
        left = leftovers(marker)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    wrong = [f"process {pid}: {name}" for pid, name in left.items()]
    wrong += [f"TMPDIR: {name}" for name in contents(temporary)]
    after = contents(work)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    wrong += [f"working folder: {name}" for name in sorted(changed - MAY_WRITE.get(verb, set()))]
    errors.seek(0)
    text = errors.read().decode(errors="replace")
    errors.close()
    process.stdin.close()
    if "Traceback" in text and os.path.join("vramcast", "cli", "") in text:  # not one of Python's own start
        wrong.append(f"a traceback: {text[-400:]}")
    if number is not None and process.returncode not in (-number, 128 + number, 0, 1, 2, 3):
        wrong.append(f"exit status {process.returncode} after {signal.Signals(number).name}")
    return Ended(process.returncode, text, wrong)


def search_path() -> str:
    return os.pathsep.join(filter(None, [os.fspath(ROOT / "src"), os.environ.get("PYTHONPATH")]))


def contents(place: Path) -> dict[str, str]:
    return {
        os.fspath(path.relative_to(place)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "folder"
        for path in sorted(place.rglob("*"))
        if "__pycache__" not in path.parts
    }


def leftovers(marker: str) -> dict[int, str]:
    """Processes that carry the marker and do not end by themselves within the grace."""
    until = time.monotonic() + GRACE_SECONDS
    while (alive := marked(marker)) and time.monotonic() < until:
        time.sleep(0.05)
    return alive


def marked(marker: str) -> dict[int, str]:
    alive = {}
    for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()):
        try:
            if marker.encode() not in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                continue
            if Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1] == b"Z":
                continue
            words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        alive[pid] = words.strip()
    return alive


def make_trace() -> bytes:
    with folder(b"") as work:
        script = TRAINING.replace("num_workers=2", "num_workers=0")
        (work / "train.py").write_text(script)
        words = [sys.executable, "-m", "vramcast", "run", "--gpu", "rtx-4090", "--save", "made.trace", "train.py"]
        environment = {**os.environ, "PYTHONPATH": search_path()}
        subprocess.run(words, cwd=work, env=environment, check=True, capture_output=True)
        return (work / "made.trace").read_bytes()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=6, metavar="N", help="for each verb (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the moments (%(default)s)")
    parser.add_argument("verbs", nargs="*", metavar="VERB", help=f"which ones; all of {', '.join(VERBS)}")
    args = parser.parse_args()
    trace, failures, total = make_trace(), 0, 0
    for verb in args.verbs or VERBS:
        moments = random.Random(f"{args.seed} {verb}")
        with folder(trace) as work:
            start = time.monotonic()
            endless = ENDLESS_SECONDS.get(verb)
            alone = run(verb, work, signal.SIGTERM if endless else None, endless or 120)
            seconds = time.monotonic() - start
        codes: dict[int, int] = {}
        wrong = [f"{verb}, left alone: {text}" for text in alone.left]
        for turn in range(args.times):
            number = SIGNALS[turn % len(SIGNALS)]
            moment = moments.uniform(0.0, seconds)
            with folder(trace) as work:
                ended = run(verb, work, number, moment)
            codes[ended.code] = codes.get(ended.code, 0) + 1
            wrong += [f"{verb}, {number.name} after {moment:.2f} s: {text}" for text in ended.left]
            total += 1
        counts = ", ".join(f"{code} {count}x" for code, count in sorted(codes.items()))
        print(
            f"{verb:10} {args.times} times within {seconds:.1f} s; exit status {counts}; {len(wrong)} wrong", flush=True
        )
        print("".join(f"    {text}\n" for text in wrong), end="", flush=True)
        failures += len(wrong)
    print(f"{total} times ended; {failures} processes, files, tracebacks or exit codes that should not be")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
