"""Ranks of a distributed job: which are run, and what they take side by side."""

from __future__ import annotations

import argparse
import dataclasses
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from vramcast.base.errors import CannotPredict, UsageError
from vramcast.base.processes import end_with_parent
from vramcast.base.units import format_gib

if TYPE_CHECKING:
    from vramcast.launchers import Launch
    from vramcast.memory import Prediction
    from vramcast.trace import StepTrace


def add_rank_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gpus", type=count, metavar="N", help="cards of each node: one process for each, as torchrun starts them"
    )
    parser.add_argument(
        "--one-process", action="store_true", help="one process sees all cards: DataParallel, device_map, cuda:1"
    )
    parser.add_argument("--nodes", type=count, metavar="N", help="machines with that many cards each (default 1)")
    parser.add_argument(
        "--rank", metavar="R", help="the ranks to run: 5, or 0,7, or all (default: the first and the last)"
    )


def count(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= 1 << 20:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def on_cards(launch: Launch, gpus: int | None, nodes: int | None, *, one_process: bool = False) -> Launch:
    """The launch with as many processes as --gpus and --nodes say."""
    if one_process:
        if launch.world_size > 1 or nodes is not None or gpus is None:
            raise UsageError("--one-process goes with --gpus N and a script that is started once, without a launcher")
        return launch
    if gpus is None and nodes is None:
        return launch
    if launch.world_size > 1:
        raise UsageError(f"{launch.launcher} says how many processes there are already: leave --gpus and --nodes out")
    from vramcast.launchers.torchrun import with_ranks

    started = dataclasses.replace(launch, processes=gpus or 1, nodes=nodes or 1)
    return with_ranks(started, address="127.0.0.1", port="29500", environment=os.environ)


def chosen_ranks(text: str | None, world_size: int) -> tuple[int, ...]:
    if text is None:
        return (0,) if world_size == 1 else (0, world_size - 1)
    if text == "all":
        return tuple(range(world_size))
    ranks = []
    for part in text.split(","):
        if not part.strip().isdecimal() or not 0 <= int(part) < world_size:
            raise UsageError(
                f"--rank {text}: {part.strip()!r} is not a rank of {world_size} (0 to {world_size - 1}); "
                "--gpus or torchrun says how many there are"
            )
        ranks.append(int(part))
    return tuple(dict.fromkeys(ranks))


def is_one_process(prediction: Prediction) -> bool:
    """A program that uses several cards and makes no process group: it is started once, whatever --gpus says."""
    return len(prediction.cards) > 1 and all(note.topic != "distributed" for note in prediction.notes)


def predict_ranks(
    ranks: Sequence[int], world_size: int, run: Callable[[int], Prediction]
) -> tuple[Prediction, list[dict[str, Any]]]:
    """The rank that takes the most, and what each took. Each runs in a process of its own, the first in this one."""
    from vramcast.memory import predict, with_time
    from vramcast.trace import Note

    waiting = list(ranks[1:])
    running = [Child(waiting.pop(0), run) for _ in range(min(_AT_ONCE, len(waiting)))]
    others = []
    while waiting:  # before this process runs a rank itself, so that all start from the same
        others.append(running.pop(0).finish())
        running.append(Child(waiting.pop(0), run))
    predictions = {ranks[0]: run(ranks[0])}
    if is_one_process(predictions[ranks[0]]):
        for child in running:
            child.finish()
        return predictions[ranks[0]], []
    for child in (*others, *(child.finish() for child in running)):
        predictions[child.rank] = with_time(predict(child.trace()))
    largest = max(predictions, key=lambda rank: (predictions[rank].peak_reserved_bytes, -rank))
    prediction = predictions[largest]
    if len(predictions) > 1:
        note = Note("ranks", _in_words(predictions, largest, world_size))
        prediction = dataclasses.replace(prediction, notes=(*prediction.notes, note))
    return prediction, [
        {
            "rank": rank,
            "fits": of_rank.fits,
            "peak_allocated_bytes": of_rank.peak_allocated_bytes,
            "peak_reserved_bytes": of_rank.peak_reserved_bytes,
        }
        for rank, of_rank in sorted(predictions.items())
    ]


_AT_ONCE = max(1, (os.cpu_count() or 1) - 1)


class Child:
    """A forked process that runs one rank and hands over its trace; one that `waits` runs only when told to.
    `cpu_seconds`: it is ended when it has used that much of the processor."""

    def __init__(
        self, rank: int, run: Callable[[int], Prediction], *, waits: bool = False, cpu_seconds: int | None = None
    ) -> None:
        self.rank = rank
        may_go, self._go = os.pipe()
        self._is_waited_for = False
        # Opened here: what the child opens later is kept off the disk, as all files of the program are.
        self._answer = tempfile.TemporaryFile()  # noqa: SIM115  (two processes use it)
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                end_with_parent(parent)
                os.close(self._go)
                if not waits or os.read(may_go, 1):  # nothing comes where the parent has ended, or has no need of it
                    if cpu_seconds is not None:
                        import resource  # there is none where there is no fork

                        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
                    self._work(run)
            finally:
                os._exit(0)
        os.close(may_go)
        if not waits:
            self.go()

    def go(self) -> None:
        os.write(self._go, b"1")
        self._is_waited_for = True
        os.close(self._go)

    def dismiss(self) -> None:
        """One that was never told to run ends."""
        if not self._is_waited_for:
            os.close(self._go)
            self.finish()

    def _work(self, run: Callable[[int], Prediction]) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        answer: Any
        try:
            answer = run(self.rank).trace
        except CannotPredict as error:
            answer = str(error)
        self._answer.write(pickle.dumps(answer))
        self._answer.flush()

    def finish(self) -> Child:
        os.waitpid(self._pid, 0)
        return self

    def trace(self) -> StepTrace:
        """What it recorded."""
        self._answer.seek(0)
        data = self._answer.read()
        self._answer.close()
        if not data:
            raise CannotPredict(f"rank {self.rank} ended without a result; --rank {self.rank} shows why")
        answer = pickle.loads(data)
        if isinstance(answer, str):
            raise CannotPredict(f"rank {self.rank}: {answer}")
        return answer  # type: ignore[no-any-return]


def _in_words(predictions: dict[int, Prediction], largest: int, world_size: int) -> str:
    rows = ", ".join(
        f"rank {rank} {format_gib(prediction.peak_reserved_bytes)}" for rank, prediction in sorted(predictions.items())
    )
    left = world_size - len(predictions)
    others = f"; the {left} between were not run (--rank all runs them)" if left else ""
    return f"reserved at the peak: {rows}; shown is rank {largest}{others}"
