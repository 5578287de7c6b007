"""Answer questions on all cores. A worker that is killed takes the question it was at with it, and no other."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from vramcast.base.errors import VramcastError
from vramcast.base.processes import is_worker
from vramcast.features.sweep.answer import FAILED, Answer, answer
from vramcast.features.sweep.grid import Question

Answered = Iterator[tuple[Question, Answer]]
_AHEAD = 2
"""Questions that wait for each worker, so that none is idle."""


def answers_here(questions: Sequence[Question], workers: int, allow_code: bool = False) -> Answered:
    """Answers as they come. A question whose worker dies is asked once more by itself; if that one dies too, that is
    the answer."""
    if workers < 2 or sys.platform != "linux":
        yield from ((question, answer(question, allow_code)) for question in questions)
        return
    if questions:
        _import_once(questions)
    suspects: list[Question] = []
    waiting = list(reversed(questions))
    while waiting:
        yield from _pool(waiting, workers, allow_code, suspects)
    for question in suspects:
        alone: list[Question] = []
        yield from _pool([question], 1, allow_code, alone)
        if alone:
            text = "the process that worked on it was killed twice; memory may have run out"
            yield question, Answer(id=question.id, verdict=FAILED, message=text)


def _pool(waiting: list[Question], workers: int, allow_code: bool, suspects: list[Question]) -> Answered:
    """Work on `waiting`, from its end, until it is empty or a worker dies; what was under way then is suspected."""
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(workers, context, initializer=is_worker, initargs=(os.getpid(),))
    running: dict[Future[Answer], Question] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers * _AHEAD:
                question = waiting.pop()
                running[pool.submit(answer, question, allow_code)] = question
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                question = running[future]
                found = future.result()
                del running[future]
                yield question, found
    except BrokenProcessPool:
        for future, question in running.items():
            if future.done() and future.exception() is None:
                yield question, future.result()
            else:
                suspects.append(question)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _import_once(questions: Sequence[Question]) -> None:
    """What the jobs need is imported before forks are made, so that not each of them does."""
    from vramcast.base.factories import hush_torch, without_collections
    from vramcast.jobs.load import load_job

    hush_torch()
    with without_collections():
        import vramcast.prediction.tracing  # noqa: F401
        from vramcast.jobs.building.preload import preload
    for job in dict.fromkeys(question.job for question in questions):
        with contextlib.suppress(VramcastError):  # said in the answer
            preload(load_job(job).job)
    gc.freeze()


def answers_on_ray(
    questions: Sequence[Question], address: str, allow_code: bool, connect: Callable[[str], Any]
) -> Answered:
    """Answers as they come from a Ray cluster, which schedules the questions itself and asks again where a node is
    lost."""
    ray = connect(address)
    remote = ray.remote(max_retries=3)(answer)
    running = {remote.remote(question, allow_code): question for question in questions}
    while running:
        done, _ = ray.wait(list(running), num_returns=1)
        for reference in done:
            question = running.pop(reference)
            try:
                found = ray.get(reference)
            except Exception as error:  # the task died, as often as Ray was willing to try
                found = Answer(id=question.id, verdict=FAILED, message=" ".join(str(error).split())[:500])
            yield question, found
