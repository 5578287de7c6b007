"""A training job, field by field. The docs page and the JSON Schema are made from the text under each field.

Only what is needed must be said; the shortest job is a component and a batch size:

    components:
      model: {transformers: ./Llama-2-7b-hf}
    sizes: {batch: 4, sequence: 2048}
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from vramcast.jobs.fields import Name, ScenarioName, Section, Size, SizeName
from vramcast.jobs.schema.batch import Diffusion, Input
from vramcast.jobs.schema.component import Checkpointing, Component
from vramcast.jobs.schema.machine import Dataset, Gpus, Target
from vramcast.jobs.schema.own_code import Script, Step
from vramcast.jobs.schema.shorthands import offload_words, one_or_many, short
from vramcast.jobs.schema.training import Ema, Evaluation, Loss, Offload, Optimizer, Precision

_FIELDS_BESIDE_A_SCRIPT = {"name", "script", "target", "allocator_conf", "scenarios"}


class Job(Section):
    """A training job, or one forward pass of it."""

    name: str = "job"
    """Shown in reports."""
    task: Literal["training", "inference"] = "training"
    """inference: forward passes only, under torch.no_grad()."""
    components: dict[Name, Component] = {}
    """The networks, in the order in which they are called."""
    inputs: dict[Name, Input] = {}
    """The tensors of a batch. Left out: the usual ones of the model, made from its config and the sizes."""
    sizes: dict[SizeName, Size] = {}
    """batch, frames, height, width, sequence, and others of your own that shapes use. Left out: 1 for the batch, and
    what the model's config says for the rest."""
    diffusion: Diffusion | None = None
    """Noise that is added on the card."""
    loss: Annotated[list[Loss], one_or_many("kind", Loss)] = []
    """One term or several, which are added. Left out: the model's own loss, or what is usual for this kind of model."""
    precision: Annotated[Precision, short("preset", str, Precision)] = Precision()
    """fp32, tf32, bf16, fp16, pure-bf16 or pure-fp16; or each part of it."""
    optimizer: Annotated[list[Optimizer], one_or_many("name", Optimizer)] = [Optimizer()]
    """One or several."""
    ema: Annotated[Ema, short("enabled", bool, Ema)] | None = None
    """An averaged copy of the weights."""
    gradient_clipping: Annotated[float, Field(gt=0, strict=False)] | None = None
    """Largest norm of all gradients (torch.nn.utils.clip_grad_norm_)."""
    accumulation: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Forward and backward passes for one optimizer step."""
    checkpointing: Annotated[Checkpointing, short("scope", str, Checkpointing)] = Checkpointing(scope="none")
    """none, all, or by module."""
    offload: Annotated[Offload, BeforeValidator(offload_words, json_schema_input_type=Offload | str | list[str])] = (
        Offload()
    )
    """What lies in the computer's memory."""
    evaluation: Evaluation | None = None
    """A validation pass."""
    gpus: Annotated[Gpus, short("count", int, Gpus)] = Gpus()
    """How many, and how they share the work."""
    pinned_batches: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Batches that the data loader holds in the computer's pinned memory at a time: with pin_memory=True two for each
    of its workers, and the one in use. They take no memory of the card."""
    dataset: Dataset | None = None
    """How many samples and epochs."""
    target: Annotated[Target, short("gpu", str, Target)] = Target()
    """The card."""
    allocator_conf: str | None = None
    """What PYTORCH_CUDA_ALLOC_CONF would say, e.g. expandable_segments:True."""
    torch_compile: bool = False
    """The model is compiled (torch.compile, the default mode). Where that cannot be done here, it is predicted as eager
    code, and the report says so."""
    cudnn_benchmark: bool = False
    """torch.backends.cudnn.benchmark."""
    zero_grad: Literal["before-forward", "before-backward", "after-step"] = "before-forward"
    """When gradients are given back. before-backward keeps them during the next forward pass."""
    set_to_none: bool = True
    """zero_grad's argument. false: gradients are filled with zeros and stay."""
    outputs_live_until: Literal["forward", "step", "next-step"] = "next-step"
    """How long the loop holds on to what the model returned: until the loss is there (Hugging Face's Trainer,
    Lightning), until the end of the step, or until the next step replaces it, as variables of a plain loop do."""
    batch_lives_until: Literal["forward", "step", "next-step"] | None = None
    """How long the loop holds on to the batch. Left out: as long as to the outputs."""
    forward_function: bool = False
    """The forward pass and the loss are a function of their own, which returns the loss and what the model returned:
    all else that it made (noise, what encoders and teachers returned) goes when it ends, and what it returns replaces
    that of the step before only then. false: they stand in the loop itself."""
    step: Step | None = None
    """A training step of your own instead of components, inputs and loss."""
    script: Annotated[Script, short("path", str, Script)] | None = None
    """A training script instead of all else: what it does is what is predicted, and it is stopped after a few optimizer
    steps. Beside it only name, target and allocator_conf can be said."""
    scenarios: dict[ScenarioName, dict[str, Any]] = {}
    """Variants of this job for `vramcast compare`: name → the fields that differ, by dotted names or nested, e.g.
    {frozen: {components.encoder.mode: frozen}, small: {sizes: {batch: 1}}}. The job itself is not changed by them."""

    def half_of(self, name: str) -> str:
        """bf16 or fp16: what a quantized component computes in. Where nothing says it, bf16, as QLoRA's authors do."""
        said = (self.components[name].dtype, self.precision.weights_dtype, self.precision.autocast_dtype)
        return next((dtype for dtype in said if dtype in ("fp16", "bf16")), "bf16")

    def offload_of(self, name: str) -> str:
        """none, model or sequential: how a component lies in the computer's memory between its calls."""
        component = self.components[name]
        if component.same_as is not None:
            return self.offload_of(component.same_as)
        if component.offload is not None:
            return component.offload
        stays = self.task == "training" and (component.is_trained or not component.runs_without_grad)
        return "none" if stays or not component.call or component.device == "cpu" else self.offload.components

    @property
    def effective_batch_life(self) -> str:
        """forward, step or next-step."""
        return self.batch_lives_until or self.outputs_live_until

    @property
    def effective_sizes(self) -> dict[str, int]:
        """The sizes of one GPU's batch."""
        sizes = dict(self.sizes)
        if self.gpus.global_batch is not None:
            sizes["batch"] = self.gpus.global_batch // self.gpus.data
        sizes.setdefault("batch", 1)
        return sizes

    @property
    def updates_in_backward(self) -> bool:
        """Hooks make the optimizers' steps, each for one parameter."""
        return any(optimizer.in_backward for optimizer in self.optimizer)

    @property
    def samples_per_step(self) -> int:
        """Samples of all GPUs and passes in a step."""
        return self.effective_sizes["batch"] * self.passes * self.gpus.data

    @property
    def passes(self) -> int:
        """Forward and backward passes of a step; of a pipeline, its microbatches."""
        return self.gpus.pipeline if self.accumulation == 1 else self.accumulation

    @model_validator(mode="after")
    def _agree(self) -> Self:
        from vramcast.jobs.offload import check_offload
        from vramcast.jobs.references import check_references

        if self.script is not None and (extra := sorted(set(self.changed_fields) - _FIELDS_BESIDE_A_SCRIPT)):
            raise ValueError(f"`{extra[0]}` is for the script to say: give it to the script (script.arguments)")
        if self.script is None and bool(self.components) == (self.step is not None):
            raise ValueError("a job has components, a `step` of its own or a `script`; this one has both or neither")
        if self.gpus.global_batch is not None and "batch" in self.sizes:
            raise ValueError("sizes.batch (of one GPU) and gpus.global_batch (of all) are both given: leave one out")
        if self.updates_in_backward:
            self._check_updates_in_backward()
        check_references(self)
        check_offload(self)
        return self

    def _check_updates_in_backward(self) -> None:
        """A gradient is gone before another pass, its norm or its scale could matter."""
        against = {
            "every optimizer must be": not all(optimizer.in_backward for optimizer in self.optimizer),
            "accumulation must be 1": self.accumulation > 1,
            "leave gradient_clipping out": self.gradient_clipping is not None,
            "a GradScaler needs all gradients together: take bf16": self.precision.uses_grad_scaler,
            "only one GPU is modelled": self.gpus.count > 1,
        }
        reason = next((text for text, applies in against.items() if applies), None)
        if reason is not None:
            raise ValueError(f"optimizer.in_backward: {reason}")
