"""The training loop of one stage of a pipeline, in the order of 1F1B."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from vramcast.base.errors import CannotPredict
from vramcast.jobs.building.built import Built
from vramcast.jobs.schema import Job
from vramcast.jobs.training.divided import Layout
from vramcast.jobs.training.dtypes import DTYPES
from vramcast.trace.schema import BACKWARD_PASS, FORWARD_PASS


class PipelineLoop:
    """What `TrainingLoop` is for one card: `run()` yields after every optimizer step."""

    loss_was_guessed = False

    def __init__(
        self, job: Job, layout: Layout, module: nn.Module, built: Built, optimizers: list[torch.optim.Optimizer],
        sizes: Mapping[str, int], mark: Callable[[str], None],
    ) -> None:  # fmt: skip
        """`mark` leaves a mark in the trace before each pass."""
        pipelining: Any = importlib.import_module("torch.distributed.pipelining")
        self._job, self._optimizers = job, optimizers
        stage, stages = layout.stage, layout.gpus.pipeline
        self._first, self._last = stage == 0, stage == stages - 1
        batch, length = sizes["batch"], sizes["sequence"]
        self._rows = batch * job.passes, length
        self._vocabulary = int(built.config["vocab_size"])
        dtype = _dtype(module, job)
        hidden = torch.empty(batch, length, int(built.config["hidden_size"]), dtype=dtype, device="meta")
        ids = torch.empty(batch, length, dtype=torch.long, device="meta")
        half = job.precision.autocast_dtype
        logits_dtype = dtype if half == "none" else DTYPES[half]
        logits = torch.empty(batch, length, self._vocabulary, dtype=logits_dtype, device="meta")
        part = pipelining.PipelineStage(
            module, stage, stages, torch.device("cuda"),
            input_args=(ids if self._first else hidden,), output_args=(logits if self._last else hidden,),
            group=layout.mesh["pipeline"].get_group(),
        )  # fmt: skip
        for label, name in ((FORWARD_PASS, "forward_one_chunk"), (BACKWARD_PASS, "backward_one_chunk")):
            setattr(part, name, _marked(getattr(part, name), label, mark))
        if job.passes < stages:
            raise CannotPredict(f"accumulation: {stages} stages need at least {stages} microbatches, not {job.passes}")
        self._schedule = pipelining.Schedule1F1B(part, job.passes, loss_fn=_loss)
        # The last stage would keep the logits of all microbatches; training loops (torchtitan's) do not want them.
        takes = inspect.signature(self._schedule.step).parameters
        self._options = {"return_outputs": False} if "return_outputs" in takes else {}

    def run(self) -> Iterator[None]:
        job = self._job
        while True:
            ids = torch.randint(0, self._vocabulary, self._rows).to("cuda")
            for optimizer in self._optimizers:
                optimizer.zero_grad()
            arguments = (ids,) if self._first else ()
            self._schedule.step(*arguments, **({"target": ids} if self._last else {}), **self._options)
            if job.gradient_clipping is not None:
                trained = [p for o in self._optimizers for group in o.param_groups for p in group["params"]]
                nn.utils.clip_grad_norm_(trained, job.gradient_clipping)
            for optimizer in self._optimizers:
                optimizer.step()
            yield

    def evaluate(self) -> None:
        """Nothing: a job with an evaluation is refused."""


def _marked(run: Callable[..., Any], label: str, mark: Callable[[str], None]) -> Callable[..., Any]:
    def marked(number: int, *args: Any, **kwargs: Any) -> Any:
        mark(f"{label}{number}")
        return run(number, *args, **kwargs)

    return marked


def _dtype(module: nn.Module, job: Job) -> torch.dtype:
    """Of what goes from stage to stage: FSDP casts weights to half precision, autocast leaves the sums as they are."""
    half = job.precision.autocast_dtype
    return DTYPES[half] if half != "none" and job.gpus.data > 1 else next(module.parameters()).dtype


def _loss(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
