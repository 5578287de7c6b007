"""A training job, field by field. The docs page and the JSON Schema are made from the text under each field.

Only what is needed must be said; the shortest job is a component and a batch size:

    components:
      model: {transformers: ./Llama-2-7b-hf}
    sizes: {batch: 4, sequence: 2048}
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from vramcast.jobs.fields import (
    LARGEST_SIZE,
    Arguments,
    Count,
    Dtype,
    Expression,
    FactoryName,
    FloatDtype,
    Name,
    Reference,
    Section,
    Size,
    SizeName,
)

SOURCES = ("transformers", "diffusers", "timm", "torchvision", "factory", "copy_of", "same_as")
"""The fields of a component of which exactly one says where it comes from."""


_FIELDS_OF_A_CALL = {"same_as", "mode", "role", "method", "inputs", "options", "no_grad"}
"""What a component that is the same as another says of its own."""


def _short(field: str, kind: type, section: Any) -> BeforeValidator:
    """Let `precision: bf16` stand for `precision: {preset: bf16}`."""
    return BeforeValidator(_expander(field, kind), json_schema_input_type=section | kind)


def _one_or_many(field: str, section: Any) -> BeforeValidator:
    """Let `optimizer: adamw` stand for `optimizer: [{name: adamw}]`."""
    expand = _expander(field, str)

    def to_list(value: Any) -> Any:
        return [expand(item) for item in value] if isinstance(value, list) else [expand(value)]

    return BeforeValidator(to_list, json_schema_input_type=str | section | list[str | section])


def _expander(field: str, kind: type) -> Callable[[Any], Any]:
    return lambda value: {field: value} if type(value) is kind else value


def _offload_words(value: Any) -> Any:
    """`offload: activations`, `offload: [optimizer, model]`."""
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return value
    said: dict[str, Any] = {}
    for word in words:
        said |= {"components": word} if word in ("model", "sequential") else {word: True}
    return said


class Lora(Section):
    """Low-rank adapters, as peft puts them in."""

    rank: Count = 16
    """Rank of the two small matrices."""
    alpha: Annotated[float, Field(gt=0, strict=False)] | None = None
    """Scaling; left out: twice the rank. Takes no memory."""
    dropout: Annotated[float, Field(ge=0, lt=1, strict=False)] = 0.0
    """Dropout before the adapters. Above zero it keeps a mask for each of them."""
    targets: list[str] | str | None = None
    """Names of the modules that get adapters (q_proj, v_proj), one regular expression, or "all-linear". Left out: what
    peft takes for this architecture."""
    trained_modules: list[str] = []
    """Names of modules that are trained whole beside the adapters (peft's modules_to_save), e.g. lm_head."""
    dtype: FloatDtype | None = None
    """Of the adapters. Left out: peft's rule, fp32 on a half-precision base."""


class Checkpointing(Section):
    """Activations that are computed again in the backward pass. `checkpointing: all` alone is enough."""

    scope: Literal["none", "all", "modules"] = "all"
    """all: the model's own gradient_checkpointing_enable or enable_gradient_checkpointing, or, where it has none, each
    module of its longest list of equal blocks. modules: those that `modules` names."""
    modules: list[str] = []
    """Patterns of module names, e.g. ["blocks.*", "stage?.residual_group*"]."""
    skip: list[str] = []
    """Of those, the ones that are not checkpointed."""
    reentrant: bool = False
    """torch.utils.checkpoint's use_reentrant."""
    attention: bool | None = None
    """KAIR's use_checkpoint_attn: handed to a factory that takes an argument of that name."""
    feed_forward: bool | None = None
    """KAIR's use_checkpoint_ffn, likewise."""
    skip_attention_blocks: list[int] = []
    """KAIR's no_checkpoint_attn_blocks, likewise."""
    skip_feed_forward_blocks: list[int] = []
    """KAIR's no_checkpoint_ffn_blocks, likewise."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if (self.modules or self.skip) and self.scope != "modules":
            raise ValueError("`modules` and `skip` need scope: modules")
        if self.scope == "modules" and not self.modules:
            raise ValueError('scope: modules needs `modules`, e.g. ["blocks.*"]')
        return self


class Component(Section):
    """One network of the job: where it comes from, how it is held, whether it learns, what it is given."""

    transformers: str | None = None
    """Source: a Hugging Face transformers folder with config.json. No weights are read."""
    diffusers: str | None = None
    """Source: a diffusers folder, either one model's (config.json) or a pipeline's (model_index.json, with
    `subfolder`)."""
    timm: str | None = None
    """Source: a timm model name, e.g. vit_base_patch16_224."""
    torchvision: str | None = None
    """Source: a torchvision model name, e.g. resnet50, deeplabv3_resnet50 or r3d_18."""
    factory: FactoryName | None = None
    """Source: a Python function that returns the module, "package.module:function" or "file.py:function"."""
    copy_of: Name | None = None
    """Source: a deep copy of another component, e.g. the frozen original beside the one being trained."""
    same_as: Name | None = None
    """Source: another component itself, called once more with other inputs or by another method: siamese networks, or
    decode of an autoencoder whose encode was called before. It holds nothing of its own."""

    subfolder: str | None = None
    """The part of a pipeline folder: transformer, unet, text_encoder, vae."""
    class_name: str | None = None
    """The class to build instead of the one that the folder names, e.g. BertForSequenceClassification or
    AutoModelForCausalLM."""
    task: str | None = None
    """transformers: the head to put on, e.g. causal-lm, sequence-classification, masked-lm, feature-extraction. Left
    out: what `architectures` in config.json says."""
    config: Arguments = {}
    """Values that replace those of config.json, e.g. {num_hidden_layers: 4}."""
    arguments: Arguments = {}
    """Keyword arguments of the factory, the timm or torchvision builder, or of from_config (attn_implementation)."""
    trust_remote_code: bool = False
    """Let transformers run the Python code that lies in the folder."""

    mode: Literal["trained", "frozen", "lora"] = "trained"
    """trained: gradients and optimizer state for every parameter. frozen: none. lora: only for the adapters."""
    lora: Lora | None = None
    """The adapters; only with mode: lora."""
    train_only: list[str] = []
    """Only parameters whose name matches one of these patterns are trained (* and ? as in file names, or a part of the
    name), e.g. ["head.*"]."""
    freeze: list[str] = []
    """Parameters whose name matches one of these patterns are frozen, e.g. ["spynet", "deform"] (KAIR's fix_keys)."""
    freeze_steps: Annotated[int, Field(ge=0)] | None = None
    """`freeze` holds only for this many first steps (KAIR's fix_iter). The prediction is for the steps after them,
    which take more; 0 or left out: `freeze` holds for good."""
    dtype: FloatDtype | None = None
    """Of its weights. Left out: `precision.weights`."""
    quantization: Literal["none", "int8", "nf4"] = "none"
    """bitsandbytes' 8-bit or 4-bit weights of all linear layers but the head, for a frozen component or LoRA. peft's
    prepare_model_for_kbit_training, which turns the other weights into fp32, is not applied."""
    channels_last: bool = False
    """Weights in channels-last layout, into which they are brought on the card."""
    built_on: Literal["cpu", "gpu"] = "cpu"
    """gpu: it is built on the card in fp32 and brought into its dtype there (`with torch.device("cuda")`). What that
    leaves behind stays in the allocator's cache."""
    prepare: list[Name] = []
    """Methods of the model that are called once, without arguments, before it is trained, e.g. freeze_feature_encoder
    or enable_input_require_grads."""
    copies: Annotated[int, Field(ge=1, le=64)] = 1
    """How many of it lie on the card. Those after the first are frozen and never called."""
    device: Literal["gpu", "cpu"] = "gpu"
    """cpu: it stays in the computer's memory and takes none of the card's; it cannot be called then."""
    offload: Literal["none", "model", "sequential"] | None = None
    """It lies in the computer's memory between its calls; only for what runs without gradients. model: as a whole it is
    moved to the card when it is called, and back: after the call in training (diffusers' offload_models), before the
    next component in inference (enable_model_cpu_offload). sequential: module by module (accelerate's cpu_offload,
    diffusers' enable_sequential_cpu_offload). Left out: the job's offload.components."""
    role: Literal["model", "text-encoder", "encoder", "vae", "loss-network", "teacher", "other"] | None = None
    """What it is for. Left out: model when anything of it is trained, encoder when not. A loss network is called only
    by the loss; the others, but for the model, run without gradients."""
    training_mode: bool | None = None
    """Dropout and batch norm as in training (.train()) or not (.eval()). Left out: train for what is trained."""
    call: bool = True
    """false: it lies on the card and is not used in the step (e.g. the text encoder when embeddings are cached)."""
    method: Name | None = None
    """The method called instead of the module itself, e.g. encode of an autoencoder."""
    inputs: dict[str, Reference] | list[Reference] | None = None
    """What it is called with: argument name → an input or another component's output ("text.last_hidden_state"), or a
    list of them in order. "a.b" as an argument name is key b of a dict a, "a.0" the first of a tuple a. Left out: where
    the job has `inputs`, those that its forward takes by name (or else all but the targets, in order); where it has
    none, the usual inputs of this kind of model, made from its config and the sizes."""
    options: Arguments = {}
    """Further arguments of the call that are no tensors, e.g. {return_dict: false}."""
    no_grad: bool | None = None
    """Call it without recording gradients. Left out: true for what is not trained, but for a loss network."""
    checkpointing: Annotated[Checkpointing, _short("scope", str, Checkpointing)] | None = None
    """Activation checkpointing of this component. Left out: the job's."""

    @property
    def source(self) -> str:
        """The name of the field that says where it comes from."""
        return next(name for name in SOURCES if getattr(self, name) is not None)

    @property
    def is_trained(self) -> bool:
        return self.mode != "frozen"

    @property
    def effective_role(self) -> str:
        return self.role or ("model" if self.is_trained else "encoder")

    @property
    def runs_without_grad(self) -> bool:
        """Nothing is trained in it and nothing is trained through it."""
        if self.no_grad is not None:
            return self.no_grad
        return not self.is_trained and self.effective_role != "loss-network"

    @model_validator(mode="after")
    def _agree(self) -> Self:
        given = [name for name in SOURCES if getattr(self, name) is not None]
        if len(given) != 1:
            said = " and ".join(given) if given else "none of them"
            raise ValueError(f"a component has exactly one of {', '.join(SOURCES)}; this one has {said}")
        if self.same_as is not None and (extra := sorted(set(self.changed_fields) - _FIELDS_OF_A_CALL)):
            raise ValueError(
                f"`{extra[0]}` is said where the component itself stands ({self.same_as}), not beside same_as"
            )
        if self.lora is not None and self.mode != "lora":
            raise ValueError(f"`lora` is given but mode is {self.mode}: write mode: lora")
        if self.quantization != "none" and self.mode == "trained":
            raise ValueError("quantized weights cannot be trained: write mode: lora or frozen")
        if self.device == "cpu" and self.offload not in (None, "none"):
            raise ValueError("a component that stays on the CPU is not offloaded: leave device or offload out")
        if self.device == "cpu" and self.is_trained:
            raise ValueError("a component that stays on the CPU cannot be trained here: write mode: frozen")
        for name, needs in (("subfolder", ("diffusers", "transformers")), ("task", ("transformers",))):
            if getattr(self, name) is not None and given[0] not in needs:
                raise ValueError(f"`{name}` is only for {' and '.join(needs)}, not {given[0]}")
        return self


class Input(Section):
    """One tensor of a batch."""

    shape: list[Expression]
    """Dimensions: numbers or expressions of the sizes, e.g. [batch, 3, height, width] or
    [batch, "frames // 4 + 1", 16, "height // 8", "width // 8"]. [] is a single number."""
    dtype: Dtype = "fp32"
    """Of the tensor."""
    below: Expression | None = None
    """Whole numbers from `at_least` up to, not including, this: the vocabulary, the number of classes."""
    at_least: Annotated[int, Field(ge=-LARGEST_SIZE, le=LARGEST_SIZE)] = 0
    """Smallest of the whole numbers."""
    fill: Literal["random", "ones", "zeros", "padded"] = "random"
    """ones: e.g. an attention mask without padding. padded: one with padding, zeros in the last eighth of each row."""
    made_on: Literal["cpu", "gpu"] = "cpu"
    """cpu: it comes from the data loader and is moved to the card. gpu: it is made there in each step."""
    pinned: bool = False
    """From pinned memory, moved with non_blocking=True. Takes the computer's memory, not the card's."""
    channels_last: bool = False
    """In channels-last layout when it is made. To bring it into that layout on the card, beside the tensor that was
    moved there, refer to it as "images.channels_last()"."""


class Diffusion(Section):
    """Noise is added to one input on the card. Gives the references `noise`, `timesteps`, `noisy` and `objective`."""

    clean: Reference = "latents"
    """What noise is added to."""
    schedule: Literal["noise", "flow"] = "noise"
    """noise: DDPM, the model predicts the noise. flow: flow matching, the model predicts noise − clean."""
    steps: Size = 1000
    """Noise levels."""


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
        "mean",
        "network",
        "factory",
    ] = "model"
    """model: the loss that the model itself returns (transformers with labels). mean: of the output, for when the loss
    does not matter. network: what `network` returns for both (LPIPS). distillation: the Kullback-Leibler divergence of
    two sets of logits. The others compare `prediction` with `target`, or what `network` makes of them."""
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
    lion8bit), or transformers-adafactor."""
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
    update: Literal["foreach", "loop"] = "foreach"
    """foreach: torch.optim.swa_utils.AveragedModel. loop: a deep copy, parameter by parameter, as KAIR does."""


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


class Gpus(Section):
    """How many cards, and what each of them holds. `gpus: 4` alone is DDP on four."""

    count: Count = 1
    """Number of GPUs; the prediction is for one of them."""
    strategy: Literal["none", "ddp", "fsdp", "deepspeed"] | None = None
    """Left out: ddp with more than one GPU."""
    global_batch: Size | None = None
    """The batch over all GPUs: each gets its share, instead of sizes.batch."""
    bucket_cap_mb: Annotated[float, Field(gt=0, le=100_000, strict=False)] = 25
    """DDP: size of a gradient bucket."""
    gradient_as_bucket_view: bool = False
    """DDP: gradients lie in the buckets, instead of a copy beside them."""
    find_unused_parameters: bool = False
    """DDP: look for parameters that got no gradient."""
    static_graph: bool = False
    """DDP: the graph is the same in every step."""
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 0
    """deepspeed: 1 shards optimizer state, 2 also gradients, 3 also weights."""
    reshard_after_forward: bool = True
    """fsdp: give the gathered weights back after the forward pass (FULL_SHARD)."""
    wrap: list[str] = []
    """fsdp: class names of the modules that are sharded as one unit, e.g. LlamaDecoderLayer."""
    offload_optimizer: bool = False
    """Optimizer state in the computer's memory."""
    offload_parameters: bool = False
    """Weights in the computer's memory."""

    @property
    def effective_strategy(self) -> str:
        return self.strategy or ("ddp" if self.count > 1 else "none")

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.global_batch is not None and self.global_batch % self.count:
            raise ValueError(f"a global batch of {self.global_batch} cannot be divided by {self.count} GPUs")
        if self.zero_stage and self.strategy != "deepspeed":
            raise ValueError("zero_stage needs strategy: deepspeed")
        return self


class Dataset(Section):
    """For how many steps an epoch has, and how long it takes to load."""

    size: Annotated[int, Field(ge=1)]
    """Number of samples."""
    epochs: Annotated[float, Field(gt=0, strict=False)] = 1
    """How often each is seen."""
    seconds_per_sample: Annotated[float, Field(ge=0, strict=False)] | None = None
    """What one process takes to load and prepare one sample. Left out: loading is not counted in the time of a step."""
    workers: Annotated[int, Field(ge=0, le=1024)] = 0
    """Processes that load the next batches meanwhile (a DataLoader's num_workers). 0: the loop loads itself."""


class Target(Section):
    """The card to predict for. `target: rtx-4090` alone is enough."""

    gpu: str | None = None
    """A card by any of its names, or a size such as 24GiB."""
    memory: str | None = None
    """What PyTorch may reserve at most (24GiB), instead of what the card has."""


class Step(Section):
    """A training step of your own, for a job that components and a loss cannot describe."""

    factory: FactoryName
    """A Python function that builds everything on "cuda" and returns a function which makes one training step."""
    arguments: Arguments = {}
    """Its keyword arguments. The sizes it takes by name are handed to it too."""


class Script(Section):
    """A training script that is run as it is, as `vramcast run` does. `script: train.py` alone is enough."""

    path: str
    """The script."""
    arguments: list[str | int | float] = []
    """Its own arguments, as on the command line."""


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
    loss: Annotated[list[Loss], _one_or_many("kind", Loss)] = []
    """One term or several, which are added. Left out: the model's own loss, or what is usual for this kind of model."""
    precision: Annotated[Precision, _short("preset", str, Precision)] = Precision()
    """fp32, tf32, bf16, fp16, pure-bf16 or pure-fp16; or each part of it."""
    optimizer: Annotated[list[Optimizer], _one_or_many("name", Optimizer)] = [Optimizer()]
    """One or several."""
    ema: Annotated[Ema, _short("enabled", bool, Ema)] | None = None
    """An averaged copy of the weights."""
    gradient_clipping: Annotated[float, Field(gt=0, strict=False)] | None = None
    """Largest norm of all gradients (torch.nn.utils.clip_grad_norm_)."""
    accumulation: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Forward and backward passes for one optimizer step."""
    checkpointing: Annotated[Checkpointing, _short("scope", str, Checkpointing)] = Checkpointing(scope="none")
    """none, all, or by module."""
    offload: Annotated[Offload, BeforeValidator(_offload_words, json_schema_input_type=Offload | str | list[str])] = (
        Offload()
    )
    """What lies in the computer's memory."""
    evaluation: Evaluation | None = None
    """A validation pass."""
    gpus: Annotated[Gpus, _short("count", int, Gpus)] = Gpus()
    """How many, and how they share the work."""
    dataset: Dataset | None = None
    """How many samples and epochs."""
    target: Annotated[Target, _short("gpu", str, Target)] = Target()
    """The card."""
    allocator_conf: str | None = None
    """What PYTORCH_CUDA_ALLOC_CONF would say, e.g. expandable_segments:True."""
    torch_compile: bool = False
    """The model is compiled. It is predicted as eager code, and the report says so."""
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
    script: Annotated[Script, _short("path", str, Script)] | None = None
    """A training script instead of all else: what it does is what is predicted, and it is stopped after a few optimizer
    steps. Beside it only name, target and allocator_conf can be said."""
    scenarios: dict[Name, dict[str, Any]] = {}
    """Variants of this job for `vramcast compare`: name → the fields that differ, by dotted names or nested, e.g.
    {frozen: {components.encoder.mode: frozen}, small: {sizes: {batch: 1}}}. The job itself is not changed by them."""

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
            sizes["batch"] = self.gpus.global_batch // self.gpus.count
        sizes.setdefault("batch", 1)
        return sizes

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
        check_references(self)
        check_offload(self)
        return self
