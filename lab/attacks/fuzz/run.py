"""Cases by number, in worker processes that are watched from outside."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lab import ROOT
from lab.attacks.fuzz.mutate import mutated, mutated_words
from lab.attacks.fuzz.seeds import Seed, seeds
from lab.attacks.fuzz.targets import TARGETS

MOST_SECONDS = 10.0
MOST_BYTES = 2 * 2**30
_KILL_BYTES = 4 * 2**30
_KILL_SECONDS = 120.0
_SHARED_SEEDS = 8


class TookTooLong(BaseException):
    pass


@dataclass(frozen=True, slots=True)
class Failure:
    number: int
    target: str
    what: str


def make_case(seed: int, number: int) -> Seed:
    """The input with this number."""
    rng = random.Random(f"{seed}:{number}")
    names = list(TARGETS)
    target = rng.choices(names, [TARGETS[name][1] for name in names])[0]
    known = seeds()[target]
    chosen = rng.choice(known)
    sampled = rng.sample(known, min(len(known), _SHARED_SEEDS))
    others = [sample.files[sample.main] for sample in sampled if sample.files] or [b""]
    words = tuple(mutated_words(list(chosen.words), rng)) if chosen.words and rng.random() < 0.9 else chosen.words
    files = dict(chosen.files)
    if files and (not words or rng.random() < 0.2):
        files[chosen.main] = mutated(files[chosen.main], chosen.main, others, rng)
    return replace(chosen, files=files, words=words)


def run_case(case: Seed) -> str:
    """What went wrong, in words; "" where nothing did."""
    from vramcast.errors import VramcastError

    with tempfile.TemporaryDirectory(prefix="vramcast-fuzz-") as place:
        folder = Path(place)
        _fill(folder, case)
        with _in_folder(folder), _limited():
            before = _peak_bytes(reset=True)
            start = time.process_time()
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    TARGETS[case.target][0](folder, case)
            except VramcastError as error:
                if error.exit_code not in (1, 2, 3) or not str(error):
                    return f"an error without a message, or with exit code {error.exit_code}"
            except SystemExit as error:
                if error.code not in (0, 1, 2, 3):
                    return f"exit code {error.code}"
            except TookTooLong:
                return f"{traceback.format_exc()}\nmore than {MOST_SECONDS:.0f} s"
            except BaseException:
                return traceback.format_exc()
            seconds = time.process_time() - start
            grown = _peak_bytes() - before
    if seconds > MOST_SECONDS:
        return f"{seconds:.1f} s"
    return f"{grown / 2**30:.2f} GiB" if grown > MOST_BYTES else ""


def run(
    seed: int, first: int, count: int, workers: int, failures: Path | None = None, *, quiet: bool = False
) -> list[Failure]:
    """All cases from `first` on; each worker takes every n-th."""
    seeds()
    importlib.import_module("tests.jobs.lit")  # and torch with it, once for all workers
    failed: list[Failure] = []
    by_target: Counter[str] = Counter()

    def keep(failure: Failure) -> None:
        failed.append(failure)
        if failures is not None:
            _write(failure, seed, failures)

    team = [_Worker(seed, first + i, first + count, workers) for i in range(workers)]
    start = reported = time.monotonic()
    while team:
        for worker in list(team):
            for case_target, failure in worker.results():
                by_target[case_target] += 1
                if failure is not None:
                    keep(failure)
            lost = worker.lost()
            if lost is not None:
                keep(lost)
            elif worker.is_done():
                team.remove(worker)
        if not quiet and time.monotonic() - reported > 20:
            reported = time.monotonic()
            print(
                f"{by_target.total():,} of {count:,} inputs, {len(failed)} failures, {reported - start:.0f} s",
                flush=True,
            )
        time.sleep(0.02)
    if not quiet:
        names = ", ".join(f"{name} {number:,}" for name, number in sorted(by_target.items()))
        print(f"{by_target.total():,} inputs ({names}): {len(failed)} failures in {time.monotonic() - start:.0f} s")
    return failed


class _Worker:
    """A process that works through every n-th case; it is started again after a case that ended it."""

    def __init__(self, seed: int, first: int, end: int, step: int) -> None:
        self._seed, self._end, self._step = seed, end, step
        self._context: Any = multiprocessing.get_context("fork")
        self._at = self._context.Value("q", first)
        self._since = self._context.Value("d", time.monotonic())
        self._start(first)

    def _start(self, first: int) -> None:
        self._at.value, self._since.value = first, time.monotonic()
        self._ours, theirs = self._context.Pipe(duplex=False)
        arguments = (self._seed, first, self._end, self._step, self._at, self._since, theirs)
        self._process = self._context.Process(target=_work, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def results(self) -> Iterator[tuple[str, Failure | None]]:
        try:
            while not self._ours.closed and self._ours.poll():
                yield from self._ours.recv()
        except (EOFError, OSError):
            self._ours.close()

    def is_done(self) -> bool:
        return self._ours.closed and not self._process.is_alive()

    def lost(self) -> Failure | None:
        """The case that the process was killed for, or that ended it."""
        what = self._why_ended()
        if not what:
            return None
        self._process.kill()
        self._process.join()
        number = self._at.value
        self._start(number + self._step)
        return Failure(number, make_case(self._seed, number).target, what)

    def _why_ended(self) -> str:
        if not self._process.is_alive():
            return f"the process ended with {self._process.exitcode}" if self._process.exitcode else ""
        if time.monotonic() - self._since.value > _KILL_SECONDS:
            return f"still at it after {_KILL_SECONDS:.0f} s"
        with contextlib.suppress(OSError, IndexError, ValueError):
            pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
            if pages * os.sysconf("SC_PAGE_SIZE") > _KILL_BYTES:
                return f"more than {_KILL_BYTES / 2**30:.0f} GiB"
        return ""


def _work(seed: int, first: int, end: int, step: int, at: Any, since: Any, results: Any) -> None:
    sys.stdin = open(os.devnull)
    batch: list[tuple[str, Failure | None]] = []
    for number in range(first, end, step):
        at.value, since.value = number, time.monotonic()
        case = make_case(seed, number)
        what = run_case(case)
        batch.append((case.target, Failure(number, case.target, what) if what else None))
        if what or len(batch) >= 50 or number + step >= end:
            results.send(batch)
            batch = []
    os._exit(0)


def _fill(folder: Path, case: Seed) -> None:
    for name, data in case.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    os.mkfifo(folder / "FIFO")
    (folder / "LOOP").symlink_to("LOOP")
    if case.target in ("job", "command"):
        shutil.copytree(ROOT / "tests" / "jobs" / "configs" / "llama-tiny", folder / "llama-tiny")


@contextlib.contextmanager
def _in_folder(folder: Path) -> Iterator[None]:
    before, path = os.getcwd(), list(sys.path)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        sys.path[:] = path


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """CPU time, so that a busy machine does no harm."""

    def stop(number: int, frame: Any) -> None:
        raise TookTooLong

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _peak_bytes(*, reset: bool = False) -> int:
    """The highest memory of this process since the last reset; 0 where the system does not tell."""
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        rows = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(row.split()[1]) * 1024 for row in rows if row.startswith("VmHWM:")), 0)


def _write(failure: Failure, seed: int, failures: Path) -> None:
    failures.mkdir(parents=True, exist_ok=True)
    text = f"python -m lab.attacks.fuzz --seed {seed} --only {failure.number}\n{failure.target}\n{failure.what}\n"
    (failures / f"{seed}-{failure.number}.txt").write_text(text, encoding="utf-8", errors="backslashreplace")
