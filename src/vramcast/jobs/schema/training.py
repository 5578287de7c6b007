"""How a job is trained: loss, arithmetic, optimizer, and what lies beside them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from vramcast.jobs.fields import Arguments, FactoryName, FloatDtype, Name, Reference, Section, Size, SizeName

MOST_ACCUMULATED = 3
"""Forward and backward passes of one step that are really traced: those after the second repeat it."""


class Loss(Section):
    """One term of the loss."""

    kind: Literal[
        "model",
        "mse",
        "l1",
        "smooth-l1",
        "charbonnier",
        "cross-entropy",
        "bce",
        "distillation",
        "preference",
        "likelihood",
        "desirability",
        "policy",
        "ranking",
        "mean",
        "network",
        "factory",
    ] = "model"
    """model: the loss that the model itself returns (transformers with labels). mean: of the output, for when the loss
    does not matter. network: what `network` returns for both (LPIPS). distillation: the Kullback-Leibler divergence of
    two sets of logits. preference: DPO, for logits of a language model whose batch is chosen and rejected texts;
    likelihood: the cross-entropy of the chosen ones, which ORPO adds. desirability: KTO. policy: GRPO, for logits of
    the tokens that it generated. `target` of these is the reference model, if it runs in the step. ranking: of a
    reward model's scores for chosen and rejected texts. The others compare `prediction` with `target`, or what
    `network` makes of them."""
    prediction: Reference | None = None
    """Left out: the first tensor of what the model returns."""
    target: Reference | None = None
    """Left out: the input called labels or target."""
    network: Name | None = None
    """A loss network (VGG, LPIPS) through which prediction and target go before they are compared."""
    weight: Annotated[float, Field(strict=False)] = 1.0
    """Factor of this term in the sum."""
    label_smoothing: Annotated[float, Field(ge=0, le=1, strict=False)] = 0.0
    """Of cross-entropy."""
    temperature: Annotated[float, Field(gt=0, strict=False)] = 1.0
    """Of distillation: logits are divided by it, and the term is multiplied by its square."""
    upcast: bool = False
    """Compare in fp32 (`prediction.float()`), as diffusers' training scripts do."""
    chunks: Annotated[int, Field(ge=1, le=4096)] = 1
    """Of kind: model, for a causal language model of transformers: the head and the cross-entropy are computed for this
    many pieces of the sequence in turn, each again in the backward pass, so that the logits of the whole batch never
    lie on the card."""
    chunk_tokens: Size | None = None
    """Instead of a number of `chunks`: tokens in each, whatever the batch."""
    recompute: bool = True
    """Of the pieces: false keeps what the backward pass needs of every piece, as torchtune's LinearCrossEntropyLoss."""
    first_channels: bool = False
    """Compare only as many channels of the prediction as the target has; the rest (a learned variance) is left out."""
    factory: FactoryName | None = None
    """With kind: factory, a Python function (prediction, target) → loss; without a target, (prediction)."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.kind == "network" and self.network is None:
            raise ValueError("kind: network needs `network`, the name of a component")
        if (self.kind == "factory") != (self.factory is not None):
            raise ValueError('kind: factory and `factory: "package.module:function"` belong together')
        for name, needs in (
            ("label_smoothing", "cross-entropy"),
            ("temperature", "distillation"),
            ("chunks", "model"),
            ("chunk_tokens", "model"),
        ):
            if name in self.changed_fields and self.kind != needs:
                raise ValueError(f"`{name}` is only for kind: {needs}, not {self.kind}")
        return self


class Precision(Section):
    """Of weights and arithmetic. `precision: bf16` alone is a preset."""

    preset: Literal["fp32", "tf32", "bf16", "fp16", "pure-bf16", "pure-fp16"] | None = None
    """bf16, fp16: fp32 weights under autocast (fp16 with a GradScaler). pure-bf16, pure-fp16: weights, gradients and
    optimizer state in that format, no autocast. tf32: fp32 with TensorFloat-32 matrix products."""
    weights: FloatDtype | None = None
    """Dtype of the weights of components that do not say their own. Left out: the preset's, or fp32."""
    autocast: Literal["none", "bf16", "fp16"] | None = None
    """torch.autocast around the forward pass. Left out: the preset's, or none."""
    grad_scaler: bool | None = None
    """A GradScaler. Left out: with fp16 autocast."""
    tf32: bool | None = None
    """torch.backends.cuda.matmul.allow_tf32. Left out: the preset's, or false."""

    @property
    def weights_dtype(self) -> str:
        return self.weights or {"pure-bf16": "bf16", "pure-fp16": "fp16"}.get(self.preset or "", "fp32")

    @property
    def autocast_dtype(self) -> str:
        """none, bf16 or fp16."""
        return self.autocast or (self.preset if self.preset in ("bf16", "fp16") else "none")

    @property
    def uses_grad_scaler(self) -> bool:
        return self.autocast_dtype == "fp16" if self.grad_scaler is None else self.grad_scaler

    @property
    def uses_tf32(self) -> bool:
        return self.preset == "tf32" if self.tf32 is None else self.tf32


class Optimizer(Section):
    """One optimizer. `optimizer: adamw` alone is enough."""

    name: str = "adamw"
    """A class of torch.optim in any case (adamw, sgd, adafactor), of bitsandbytes (adamw8bit, paged-adamw8bit,
    lion8bit), of torchao (torchao-adamw8bit, torchao-adamw4bit), or transformers-adafactor."""
    factory: FactoryName | None = None
    """Instead of a name: a Python function or class that is called with the parameters and `arguments`."""
    arguments: Arguments = {}
    """Its keyword arguments: lr, betas, momentum, weight_decay, foreach, fused. Lists become tuples."""
    components: list[Name] | None = None
    """The components whose parameters it updates. Left out: all that are trained."""
    parameters: list[str] = []
    """Only parameters whose name matches one of these patterns. Left out: all."""
    decay_groups: bool = False
    """Two parameter groups, biases and norm weights apart, as Hugging Face's Trainer makes them."""
    in_backward: bool = False
    """Each parameter is updated, and its gradient let go of, as soon as the backward pass has made it (torchtune's
    optimizer_in_bwd). One GPU, no accumulation, no clipping, no GradScaler."""


class Offload(Section):
    """What lies in the computer's memory instead of the card's. One word or a list of them is enough: activations,
    optimizer, gradients, model, sequential. Weights that are trained stay on the card."""

    activations: bool = False
    """What autograd saves for the backward pass: torch.autograd.graph.save_on_cpu around the forward pass. Weights that
    are saved are copied there too."""
    pinned: bool = False
    """save_on_cpu's pin_memory: copies are faster and take more: blocks are powers of two."""
    optimizer: bool = False
    """Optimizer state and the step itself: torchao's CPUOffloadOptimizer, which keeps pinned copies of weights and
    gradients beside the state. One GPU, an optimizer of torch.optim, no clipping, no GradScaler."""
    gradients: bool = False
    """CPUOffloadOptimizer's offload_gradients: each gradient leaves the card as soon as it is there. No
    accumulation."""
    components: Literal["none", "model", "sequential"] = "none"
    """`offload` of the components that run without gradients and do not say their own; in inference, of all."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.pinned and not self.activations:
            raise ValueError("`pinned` is of activations: write activations: true too")
        return self

    @property
    def offloads_optimizer(self) -> bool:
        return self.optimizer or self.gradients


class Ema(Section):
    """A second copy of the weights, averaged over time. `ema: true` alone is enough."""

    enabled: bool = True
    """false: none."""
    decay: Annotated[float, Field(gt=0, lt=1)] = 0.999
    """Takes no memory."""
    device: Literal["gpu", "cpu"] = "gpu"
    """Where the copy lies."""
    components: list[Name] | None = None
    """Left out: all that are trained."""
    update: Literal["foreach", "loop", "differences"] = "foreach"
    """foreach: torch.optim.swa_utils.AveragedModel. loop: a deep copy, parameter by parameter, as KAIR does.
    differences: those of all parameters at once, a third copy for a moment, as diffusers' foreach_ema does."""


class Evaluation(Section):
    """A forward pass without training, as a validation loop makes it."""

    when: Literal["before", "between", "after"] = "between"
    """before the first step, between the first and the second, or after the last."""
    batch: Size | None = None
    """Left out: the training batch."""
    sizes: dict[SizeName, Size] = {}
    """Other sizes that differ from training."""
    batches: Annotated[int, Field(ge=1, le=64)] = 1
    """How many batches."""
    no_grad: bool = True
    """Under torch.no_grad()."""
    keep_outputs: bool = False
    """Outputs of all batches are kept on the card and concatenated, as Hugging Face's Trainer does."""
