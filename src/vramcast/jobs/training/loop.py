"""The training loop itself. What lives until when is what memory is about, so every name here is let go of where a
script would let go of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from vramcast.base.errors import UsageError, VramcastError
from vramcast.card.dispatch.failures import job_failed
from vramcast.jobs.building.offload import Offloaded
from vramcast.jobs.references import CHANNELS_LAST, DIFFUSION_NAMES, root
from vramcast.jobs.schema import Job, Loss
from vramcast.jobs.schema.training import MOST_ACCUMULATED
from vramcast.jobs.training.averaging import Average
from vramcast.jobs.training.batch import Batch, Data
from vramcast.jobs.training.diffusion import Noise
from vramcast.jobs.training.dtypes import DTYPES
from vramcast.jobs.training.losses import TARGETS, Criterion, has_own_loss
from vramcast.jobs.training.parallel import method_of
from vramcast.jobs.training.plan import Call, Plan
from vramcast.jobs.training.references import first_tensor, look_up
from vramcast.jobs.training.zero import Engine


class TrainingLoop:
    """`run()` yields after every optimizer step (in inference, after every forward pass)."""

    def __init__(
        self,
        job: Job,
        plan: Plan,
        modules: Mapping[str, nn.Module],
        optimizers: list[torch.optim.Optimizer],
        averages: list[Average],
        offloaded: Offloaded,
        engine: Engine | None = None,
    ) -> None:
        self._job = job
        self._plan = plan
        self._modules = modules
        self._optimizers = optimizers
        self._averages = averages
        self._offloaded = offloaded
        self._engine = engine
        self._data = Data(plan.inputs, plan.sizes)
        self._noise = Noise(plan.diffusion) if plan.diffusion is not None else None
        self._scaler = (
            torch.amp.grad_scaler.GradScaler("cuda")
            if job.precision.uses_grad_scaler and optimizers and engine is None
            else None
        )
        self._criterion = Criterion(plan.loss, plan.model, modules) if plan.loss else None
        self.passes = min(job.accumulation, MOST_ACCUMULATED)
        self.later_passes: int | None = None
        """Passes of the steps after the first, where these have others."""
        self.after_pass: Callable[[], None] = lambda: None
        """Called when a backward pass has ended."""
        self.loss_was_guessed = False

    def run(self) -> Iterator[None]:
        return self._infer() if self._job.task == "inference" else self._train()

    # -- the loop -------------------------------------------------------------------------------------------

    def _train(self) -> Iterator[None]:
        job = self._job
        live: dict[str, Any] = {}
        batch: Batch | None
        loss: torch.Tensor | None
        while True:
            if job.zero_grad == "before-forward":
                self._zero_grad()
            for i in range(self.passes):
                batch = self._data.to_card()
                with self._autocast(), self._saved_on_cpu():
                    loss = self._in_function(batch, live) if job.forward_function else self._in_loop(batch, live)
                if job.effective_batch_life == "forward":
                    batch = None
                if job.outputs_live_until == "forward":
                    live.clear()
                if job.accumulation > 1:
                    loss = loss / job.accumulation
                if job.zero_grad == "before-backward" and i == 0:
                    self._zero_grad()
                self._backward(loss, last=i == self.passes - 1)
                self.after_pass()
            self.passes = self.later_passes or self.passes
            self._update()
            if job.zero_grad == "after-step":
                self._zero_grad()
            if job.effective_batch_life != "next-step":
                batch = None
            if job.outputs_live_until != "next-step":
                live.clear()
            if "next-step" not in (job.effective_batch_life, job.outputs_live_until):
                loss = None
            yield

    def _infer(self) -> Iterator[None]:
        live: dict[str, Any] = {}
        while True:
            batch = self._data.to_card()
            with torch.no_grad(), self._autocast():
                self._forward(batch, live)
            yield

    def evaluate(self) -> None:
        """The validation pass that the job describes."""
        wish = self._job.evaluation
        if wish is None:
            return
        sizes = {**self._plan.sizes, **wish.sizes}
        if wish.batch is not None:
            sizes["batch"] = wish.batch
        data = Data(self._plan.inputs, sizes)
        model = self._modules[self._plan.model]
        was_training = model.training
        model.eval()
        live: dict[str, Any] = {}
        kept: torch.Tensor | None = None
        with torch.no_grad() if wish.no_grad else nullcontext():
            for _ in range(wish.batches):
                batch = data.to_card()
                with self._autocast():
                    self._forward(batch, live)
                    loss = self._loss(batch, live)
                if wish.keep_outputs:
                    prediction = first_tensor(live[self._plan.model], "evaluation")
                    kept = prediction if kept is None else torch.cat((kept, prediction))
        del loss
        model.train(was_training)

    # -- one pass -------------------------------------------------------------------------------------------

    def _in_loop(self, batch: Batch, live: dict[str, Any]) -> torch.Tensor:
        self._forward(batch, live)
        return self._loss(batch, live)

    def _in_function(self, batch: Batch, live: dict[str, Any]) -> torch.Tensor:
        """`live` receives what such a function returns beside the loss; what it held from the step before lived until
        then."""
        made: dict[str, Any] = {}
        loss = self._in_loop(batch, made)
        live[self._plan.model] = made[self._plan.model]
        return loss

    def _forward(self, batch: Batch, live: dict[str, Any]) -> None:
        """Each result takes the place of the one before it, as an assignment in a script does."""
        waiting = self._noise is not None
        for call in self._plan.calls:
            if waiting and any(root(reference) in DIFFUSION_NAMES for _, reference in call.arguments):
                self._add_noise(batch, live)
                waiting = False
            self._convert(call, batch, live)
            live[call.component] = self._call(call, batch, live)
        self._offloaded.end_of_pass()

    def _convert(self, call: Call, batch: Batch, live: dict[str, Any]) -> None:
        """Convert layouts. A converted input has a name of its own in a script, and lives as long."""
        for _, reference in call.arguments:
            if reference.endswith(f".{CHANNELS_LAST}"):
                live[reference] = look_up(reference, {**live, **batch}, f"components.{call.component}.inputs")

    def _add_noise(self, batch: Batch, live: dict[str, Any]) -> None:
        assert self._noise is not None
        clean = self._noise.clean(batch, live)
        live["noise"] = torch.randn_like(clean)
        live["timesteps"] = self._noise.timesteps(clean)
        live["noisy"] = self._noise.noisy(clean, live["noise"], live["timesteps"])
        live["objective"] = self._noise.objective(clean, live["noise"])

    def _call(self, call: Call, batch: Batch, live: Mapping[str, Any]) -> Any:
        key = f"components.{call.component}"
        module: Any = self._modules[call.component]
        if call.method is not None:
            module = method_of(module, call.method)
            if module is None:
                raise UsageError(f"{key}.method: there is no method {call.method!r}")
        if not call.autocast:
            torch.clear_autocast_cache()  # autocast has ended there, and its copies of weights with it
        positional, named = _arguments(call, {**live, **batch}, f"{key}.inputs")
        try:
            with (
                self._offloaded.calling(call.component),
                torch.no_grad() if call.no_grad else nullcontext(),
                nullcontext() if call.autocast else torch.autocast("cuda", enabled=False),
            ):
                return module(*positional, **named)
        except (VramcastError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            given = ", ".join(f"{name or 'input'} {_shape(live, batch, ref)}" for name, ref in call.arguments)
            raise job_failed(error, key, f"calling it with {given}") from error

    def _loss(self, batch: Batch, live: Mapping[str, Any]) -> torch.Tensor:
        values = {**batch, **live}
        if self._criterion is None:
            self._criterion = Criterion([self._guess(values)], self._plan.model, self._modules)
        return self._criterion(values)

    def _guess(self, values: Mapping[str, Any]) -> Loss:
        """What a person would take who sees this output and these inputs."""
        if has_own_loss(values[self._plan.model]):
            return Loss(kind="model")
        if self._noise is not None:
            return Loss(kind="mse", target="objective", upcast=True)
        target = next((name for name in TARGETS if name in values), None)
        if target is None:
            self.loss_was_guessed = True
            return Loss(kind="mean")
        return Loss(kind="mse" if values[target].is_floating_point() else "cross-entropy", target=target)

    # -- the rest of a step ---------------------------------------------------------------------------------

    def _backward(self, loss: torch.Tensor, *, last: bool) -> None:
        if self._engine is not None:
            self._engine.backward(loss, last=last)
            return
        with self._no_sync(last=last):
            (loss if self._scaler is None else self._scaler.scale(loss)).backward()

    def _update(self) -> None:
        if self._engine is not None:
            self._engine.step()
        elif not self._job.updates_in_backward:
            self._step_optimizers()
        for average in self._averages:
            average.update()

    def _step_optimizers(self) -> None:
        clip = self._job.gradient_clipping
        if self._scaler is not None and clip is not None:
            for optimizer in self._optimizers:
                self._scaler.unscale_(optimizer)
        if clip is not None:
            trained = [p for optimizer in self._optimizers for group in optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(trained, clip)
        for optimizer in self._optimizers:
            if self._scaler is None:
                optimizer.step()
            else:
                self._scaler.step(optimizer)
        if self._scaler is not None:
            self._scaler.update()

    def _zero_grad(self) -> None:
        if self._engine is not None:
            return  # its step has done so
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=self._job.set_to_none)

    def _autocast(self) -> AbstractContextManager[Any]:
        dtype = self._job.precision.autocast_dtype
        return (
            nullcontext()
            if dtype == "none" or self._engine is not None
            else torch.autocast("cuda", dtype=DTYPES[dtype])
        )

    def _saved_on_cpu(self) -> AbstractContextManager[Any]:
        """What autograd saves in the forward pass lies in the computer's memory."""
        wish = self._job.offload
        return torch.autograd.graph.save_on_cpu(pin_memory=wish.pinned) if wish.activations else nullcontext()

    def _no_sync(self, *, last: bool) -> AbstractContextManager[Any]:
        """DDP sums gradients over the cards only in the last pass of an accumulated step."""
        parallel = self._modules[self._plan.model]
        if last or not isinstance(parallel, nn.parallel.DistributedDataParallel):
            return nullcontext()
        return parallel.no_sync()


def _arguments(call: Call, values: Mapping[str, Any], key: str) -> tuple[list[Any], dict[str, Any]]:
    positional: list[Any] = []
    named: dict[str, Any] = dict(call.options)
    for argument, reference in call.arguments:
        value = values[reference] if reference in values else look_up(reference, values, key)
        if not argument:
            positional.append(value)
            continue
        outer, _, inner = argument.partition(".")
        if not inner:
            named[outer] = value
        elif inner.isdigit():
            named[outer] = (*named.get(outer, ()), value)
        else:
            named[outer] = {**(named.get(outer) or {}), inner: value}
    return positional, named


def _shape(live: Mapping[str, Any], batch: Mapping[str, Any], reference: str) -> str:
    name = reference.partition(".")[0]
    value = batch.get(name, live.get(name))
    return str(list(value.shape)) if isinstance(value, torch.Tensor) else reference
