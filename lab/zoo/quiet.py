"""Time the steps of the zoo's scripts on the GPU of this machine, as a quiet computer would run them.

    python -m lab.zoo times --out FOLDER [NAME ...]

One process a script. Several are set up at a time; while one is timed, the others are stopped. After a warm-up come
short blocks of steps, as in `lab.measuring.quiet`. Before and after each block the host's speed is taken: of a loop in
Python, and of small ops that stay on the CPU. What a data loader takes is no part of a predicted step: while steps are
timed, loaders hand out again the batches that they gave in the warm-up. With `--profile` one further step is profiled,
and in another one calls in Python are counted.
"""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import runpy
import signal
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from time import perf_counter, process_time
from types import FrameType
from typing import Any

BLOCK_SECONDS = 0.025
BLOCKS_IN_A_ROW = 3
FEWEST_BLOCKS = 9
MEASURED_SECONDS, LONGEST_SECONDS = 1.0, 3.0
ALIKE = 1.02
"""Steps that differ by less do not feel the host: a few blocks of them are enough."""
WARM_STEPS, WARM_SECONDS = 4, 0.15
KEPT_BATCHES = 3


class StepTimer:
    """Told where each step ends, in the script's own thread; writes the record and ends the script when it is done."""

    def __init__(self, out: Path, lock: Path, profiles: bool = False) -> None:
        self._out, self._lock, self._profiles = out, lock, profiles
        self._process = os.getpid()
        self._steps: dict[int, int] = {}
        self._turns: list[int] = []
        """Which optimizer stepped, one after the other, in the warm-up."""
        self._finished_steps = 0
        self._held: Any = None
        self._placing = ExitStack()
        self._profiler: Any = None
        self._profile: dict[str, Any] | None = None
        self._calls = CallCounter()
        self._ends: list[float] = []
        self._begun_cpu = process_time()
        self._loaded_before = 0.0
        self._begun = perf_counter()
        self._in_block = 0
        self._block_size = 1
        self._warm_seconds = 0.0
        self._warm: list[float] = []
        self._blocks: list[dict[str, Any]] = []
        self._loop_seconds = 1.0
        self._before: tuple[float, float] = (0.0, 0.0)
        self._timing_since = 0.0
        self.loader_seconds = 0.0
        self.training_loaders: set[int] = set()
        """The datasets whose batches steps were made with: loops over these go on until there are enough steps."""
        self.last_loader = 0

    @property
    def timing(self) -> bool:
        return self._held is not None

    def begin(self) -> None:
        """Let the one that is timed stop this one, and begin when none is."""
        self._out.with_suffix(".pid").write_text(str(os.getpgid(0)))
        with self._lock.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)

    def _hold(self) -> None:
        """Wait until none is timed, and stop the others."""
        self._held = self._lock.open("w")
        fcntl.flock(self._held, fcntl.LOCK_EX)
        self._tell_others(signal.SIGSTOP)

    def _release(self) -> None:
        if self._held is not None and not self._held.closed:
            self._tell_others(signal.SIGCONT)
            self._held.close()

    def _tell_others(self, what: signal.Signals) -> None:
        """They are processes of the same run, each with a group of its own."""
        for path in self._out.parent.glob("*.pid"):
            if path.stem != self._out.stem:
                with suppress(ProcessLookupError, ValueError):
                    os.killpg(int(path.read_text()), what)

    def after_optimizer_step(self, optimizer: Any, *_: Any) -> None:
        """With several optimizers a step is over when each of them has made as many."""
        if os.getpid() != self._process:
            return
        self._steps[id(optimizer)] = self._steps.get(id(optimizer), 0) + 1
        if len(self._blocks) == 0:
            self._turns.append(id(optimizer))
        if min(self._steps.values()) > self._finished_steps:
            self._finished_steps = min(self._steps.values())
            self.training_loaders.add(self.last_loader)
            self._step_ended()

    def _step_ended(self) -> None:
        if self._profile is not None:
            self._profile["calls"] = self._calls.stop()
            self._finish()
        if self._profiler is not None:
            self._stop_profiler()
            return
        self._in_block += 1
        self._ends.append(perf_counter() - self._begun)
        if self._in_block < self._block_size:
            return
        _synchronize()
        seconds = (perf_counter() - self._begun) / self._in_block
        if not self.timing or len(self._warm) < 2 * WARM_STEPS or self._warm_seconds < WARM_SECONDS:
            self._warmed(seconds)
        else:
            self._timed(seconds)
        self._in_block, self._ends, self._loaded_before = 0, [], self.loader_seconds
        self._begun_cpu, self._begun = process_time(), perf_counter()

    def _warmed(self, seconds: float) -> None:
        from vramcast.features.measure import host_speed

        self._warm.append(seconds)
        if not self.timing and len(self._warm) >= WARM_STEPS:
            self._hold()
        elif self.timing:
            self._warm_seconds += seconds
            if len(self._warm) >= 2 * WARM_STEPS and self._warm_seconds >= WARM_SECONDS:
                self._block_size = self._steps_in_block(min(self._warm[-WARM_STEPS:]))
                self._loop_seconds = min(host_speed._survey().values())
                self._timing_since = perf_counter()
                self._place()

    def _steps_in_block(self, seconds: float) -> int:
        """About as long as a block should be, and whole rounds where optimizers take turns."""
        from vramcast.timing.iteration import round_length

        length = round_length(self._turns)
        in_round = min(Counter(self._turns[-length:]).values(), default=1) if length else 1
        return in_round * max(1, min(100, round(BLOCK_SECONDS / seconds / in_round)))

    def _place(self) -> None:
        from vramcast.features.measure import host_speed

        self._placing.close()
        loops = host_speed._survey()
        self._loop_seconds = min(self._loop_seconds, *loops.values())
        python, autograd = (sorted(loops, key=loops.__getitem__) * 2)[:2]
        self._placing.enter_context(host_speed._placed(python, autograd))
        self._before = host_speed._loop(), small_ops()

    def _timed(self, seconds: float) -> None:
        from vramcast.features.measure import host_speed

        spent = (process_time() - self._begun_cpu) / self._in_block
        after = host_speed._loop(), small_ops()
        self._blocks.append({
            "seconds": seconds, "loops": [self._before[0], after[0]], "small_ops": [self._before[1], after[1]],
            "processor_seconds": spent, "ends": [round(end, 6) for end in self._ends],
            "loader_seconds": self.loader_seconds - self._loaded_before,
        })  # fmt: skip
        self._before = after
        if self._is_enough():
            self._placing.close()
            if not self._profiles:
                self._finish()
            self.write()
            self._start_profiler()
        elif len(self._blocks) % BLOCKS_IN_A_ROW == 0:
            self._place()

    def _is_enough(self) -> bool:
        passed = perf_counter() - self._timing_since
        if len(self._blocks) < FEWEST_BLOCKS:
            return passed > LONGEST_SECONDS
        every = [block["seconds"] for block in self._blocks]
        return passed > MEASURED_SECONDS or max(every) < ALIKE * min(every)

    def _start_profiler(self) -> None:
        import torch

        self._profiler = torch.profiler.profile()
        self._profiler.__enter__()

    def _stop_profiler(self) -> None:
        _synchronize()
        self._profiler.__exit__(None, None, None)
        self._release()
        self._profile = profile_sums(self._profiler.events())
        self.write()
        self._calls.start()

    def _finish(self) -> None:
        self.end()
        os._exit(0)

    def end(self) -> None:
        """Let the others go on, and keep what was timed, which is less where the script ended of its own."""
        self._release()
        self._out.with_suffix(".pid").unlink(missing_ok=True)
        self.write()

    def write(self) -> None:
        record = {
            "blocks": self._blocks, "steps_in_block": self._block_size, "loop_seconds": self._loop_seconds,
            "warm": self._warm, "loader_seconds_per_step": self.loader_seconds / max(1, self._finished_steps),
            "optimizers": len(self._steps), "profile": self._profile, **_versions(),
        }  # fmt: skip
        self._out.write_bytes(gzip.compress(json.dumps(record, separators=(",", ":")).encode(), mtime=0))


class CallCounter:
    """Counts calls from `start` to `stop`: of Python functions by their package, of built-in ones by their caller's."""

    def __init__(self) -> None:
        self.functions: Counter[str] = Counter()
        self.built_in: Counter[str] = Counter()

    def start(self) -> None:
        sys.setprofile(self._called)

    def stop(self) -> dict[str, dict[str, int]]:
        sys.setprofile(None)
        return {"functions": dict(self.functions), "built_in": dict(self.built_in)}

    def _called(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            self.functions[_package(frame)] += 1
        elif event == "c_call":
            self.built_in[_package(frame)] += 1


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def profile_sums(events: Iterable[Any]) -> dict[str, Any]:
    """Of one profiled step: how often each op ran and its own time on the host, each kernel and its time, and of each
    thread what lies in ops and, by the op after it, between them. Times in microseconds."""
    ops: dict[str, list[float]] = {}
    kernels: dict[str, list[float]] = {}
    outermost: dict[int, list[Any]] = {}
    begin, end = float("inf"), 0.0
    for event in events:
        if event.is_user_annotation:
            continue
        on_card = "CUDA" in str(event.device_type)
        own = event.self_device_time_total if on_card else event.self_cpu_time_total
        _add(kernels if on_card else ops, event.name, own)
        if not on_card and event.cpu_parent is None:
            outermost.setdefault(event.thread, []).append(event)
        begin, end = min(begin, event.time_range.start), max(end, event.time_range.end)
    threads = [_between(events) for events in outermost.values()]
    return {"microseconds": max(0.0, end - begin), "ops": ops, "kernels": kernels, "threads": threads}


def _between(events: list[Any]) -> dict[str, Any]:
    events.sort(key=lambda event: event.time_range.start)
    gaps: dict[str, list[float]] = {}
    inside, reached = 0.0, events[0].time_range.start
    for event in events:
        if event.time_range.start > reached:
            _add(gaps, event.name, event.time_range.start - reached)
        inside += max(0.0, event.time_range.end - max(reached, event.time_range.start))
        reached = max(reached, event.time_range.end)
    return {"ops": len(events), "inside": inside, "gaps": gaps}


def _add(table: dict[str, list[float]], name: str, microseconds: float) -> None:
    entry = table.setdefault(name[:80], [0, 0.0])
    entry[0] += 1
    entry[1] = round(entry[1] + microseconds, 2)


def small_ops() -> float:
    """What some ops on tiny CPU tensors take, with a gradient: the dispatcher and autograd at work."""
    import torch

    with torch.enable_grad(), torch.autocast("cpu", enabled=False):
        x = torch.ones(4, 4, device="cpu", dtype=torch.float32)
        weight = torch.ones(4, 4, device="cpu", dtype=torch.float32, requires_grad=True)
        started = perf_counter()
        for _ in range(4):
            total = x
            for _ in range(8):
                total = torch.relu(total @ weight + x)
            torch.autograd.grad(total.sum(), weight)
        return perf_counter() - started


def _synchronize() -> None:
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _versions() -> dict[str, str]:
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_initialized() else "none"
    return {"gpu": gpu, "torch": torch.__version__, "python": sys.version.partition(" ")[0]}


def repeat_batches(timer: StepTimer) -> None:
    """Loaders that are trained with keep their first batches and give these again, and again, and never end.

    An evaluation, which may go through the same data, takes batches as they come and ends. Starting a loader's workers
    is a part of loading, too.
    """
    import torch
    from torch.utils.data.dataloader import DataLoader, _BaseDataLoaderIter

    load = _BaseDataLoaderIter.__next__
    kept: dict[int, list[Any]] = {}
    given: dict[int, int] = {}

    def following(self: Any) -> Any:
        dataset = timer.last_loader = id(self._dataset)
        batches = kept.setdefault(dataset, [])
        training = dataset in timer.training_loaders and torch.is_grad_enabled()
        if not training or len(batches) < KEPT_BATCHES:
            started = perf_counter()
            try:
                batches.append(load(self))
                return batches[-1]
            except StopIteration:
                if not training or not batches:
                    raise
            finally:
                timer.loader_seconds += perf_counter() - started
                del batches[KEPT_BATCHES:]
        given[dataset] = given.get(dataset, -1) + 1
        return batches[given[dataset] % len(batches)]

    begin = DataLoader.__iter__

    def beginning(self: Any) -> Any:
        started = perf_counter()
        try:
            return begin(self)
        finally:
            timer.loader_seconds += perf_counter() - started

    DataLoader.__iter__ = beginning  # type: ignore[method-assign]
    _BaseDataLoaderIter.__next__ = following  # type: ignore[method-assign]


def main(out: str, lock: str, profiles: str, script: str, *arguments: str) -> None:
    """Runs in the process of the script."""
    timer = StepTimer(Path(out), Path(lock), bool(int(profiles)))
    timer.begin()
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(timer.after_optimizer_step)
    repeat_batches(timer)
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).resolve().parent)
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        timer.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
