"""ZeRO: what data-parallel ranks hold alike is divided between them, by DeepSpeed's own engine.

The engine casts the model to half precision, keeps an fp32 copy of what learns in its optimizer, sums gradients in
buckets of its own and steps. So there is no autocast, no GradScaler and no zero_grad around it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import torch

from vramcast.base.errors import CannotPredict
from vramcast.jobs.building.built import Built
from vramcast.jobs.building.libraries import library
from vramcast.jobs.schema import Job
from vramcast.jobs.training.plan import main_component

_PACKAGE = "deepspeed"
_AUTO = "auto"
_BY_WIDTH = {
    "reduce_bucket_size": lambda width: width * width,
    "stage3_prefetch_bucket_size": lambda width: int(0.9 * width * width),
    "stage3_param_persistence_threshold": lambda width: 10 * width,
}
"""What the Trainer fills in for "auto" (transformers/integrations/deepspeed.py)."""


def check_zero(job: Job) -> None:
    """CannotPredict for what does not go together with it here."""
    gpus = job.gpus
    if find_spec(_PACKAGE) is None:
        raise CannotPredict(
            f"gpus.strategy: deepspeed: ZeRO stage {gpus.zero_stage} is predicted by DeepSpeed's own code, which is "
            "not installed: `pip install deepspeed` needs no GPU; --set gpus.strategy=ddp predicts what one GPU takes "
            "without it"
        )
    trained = [name for name, one in job.components.items() if one.is_trained and one.same_as is None]
    if job.task != "training" or job.step is not None or job.script is not None or len(trained) != 1:
        raise CannotPredict(
            "gpus.strategy: deepspeed: only the training of one component is modelled; a program that does more is run "
            "with `vramcast run -- deepspeed train.py`"
        )
    if job.updates_in_backward or len(job.optimizer) > 1 or (job.ema is not None and job.ema.enabled):
        raise CannotPredict(
            "gpus.strategy: deepspeed: one optimizer that steps after the backward pass is modelled, without an "
            "average of the weights; leave the others out"
        )


class Engine:
    """The trained component in DeepSpeed's hands."""

    def __init__(self, job: Job, built: Built, optimizer: torch.optim.Optimizer, passes: int, batch: int) -> None:
        engine = library(_PACKAGE, "gpus.strategy: deepspeed")
        _forget_groups()
        engine.init_distributed(dist_backend="nccl", auto_mpi_discovery=False)
        module = built.module
        learning = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.module: Any
        self.module, *_ = engine.initialize(
            model=module, optimizer=optimizer, model_parameters=learning, config=_config(job, built, passes, batch)
        )

    def backward(self, loss: torch.Tensor, *, last: bool) -> None:
        """As accelerate does it. From stage 2 on, each pass sums its gradients over the ranks."""
        self.module.set_gradient_accumulation_boundary(is_boundary=last)
        self.module.backward(loss)

    def step(self) -> None:
        self.module.step()


def _forget_groups() -> None:
    """DeepSpeed keeps process groups in a module, also those of a prediction before this one."""
    importlib.reload(importlib.import_module(f"{_PACKAGE}.utils.groups"))
    importlib.import_module(f"{_PACKAGE}.comm.comm").cdb = None  # type: ignore[attr-defined]


def stays_in_host_memory(job: Job, name: str) -> bool:
    """Whether a component's weights are brought to the card one by one, each divided at once."""
    return job.gpus.runs_zero and job.gpus.zero_stage == 3 and name == main_component(job)


def _config(job: Job, built: Built, passes: int, batch: int) -> dict[str, Any]:
    half = job.precision.autocast_dtype
    clip = job.gradient_clipping
    return {
        "train_micro_batch_size_per_gpu": batch,
        "gradient_accumulation_steps": passes,
        **({"gradient_clipping": clip} if clip is not None else {}),
        **({half: {"enabled": True}} if half != "none" else {}),
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": job.gpus.zero_stage, **_options(job.gpus.zero, built.config)},
    }


def _options(said: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    text = config.get("text_config")
    widths = (config.get("hidden_size"), text.get("hidden_size") if isinstance(text, dict) else None)
    width = next((one for one in widths if isinstance(one, int)), None)
    options = {name: value for name, value in said.items() if value != _AUTO}  # the others are DeepSpeed's own defaults
    if width is not None:
        options |= {name: of(width) for name, of in _BY_WIDTH.items() if said.get(name) == _AUTO}
    return options


def in_words(job: Job) -> str:
    """What was assumed of such a job."""
    count, stage = job.gpus.count, job.gpus.zero_stage
    cards = f"one of {count} GPUs" if count > 1 else "one GPU, which divides nothing (--gpus N says more)"
    others = any(one.call and not one.is_trained and one.same_as is None for one in job.components.values())
    whole = "; components that do not learn are whole on every card" if others and stage == 3 else ""
    return f"ZeRO stage {stage} by DeepSpeed's own engine, {cards}{whole}; NCCL's own buffers are not counted"
