"""A network of a job: where it comes from, what of it is trained, how it is called."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from vramcast.jobs.fields import ArgumentName, Arguments, Count, FactoryName, FloatDtype, Name, Reference, Section
from vramcast.jobs.schema.shorthands import short

SOURCES = ("transformers", "diffusers", "timm", "torchvision", "factory", "copy_of", "same_as")
"""The fields of a component of which exactly one says where it comes from."""


_FIELDS_OF_A_CALL = {"same_as", "mode", "role", "method", "inputs", "options", "no_grad", "autocast"}
"""What a component that is the same as another says of its own."""


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
    parameters: list[str] = []
    """Names of single parameters that get adapters (peft's target_parameters), e.g. mlp.experts.gate_up_proj: experts
    that are in one parameter a layer. Their weights are made with the adapter added in each pass."""
    trained_modules: list[str] = []
    """Names of modules that are trained whole beside the adapters (peft's modules_to_save), e.g. lm_head."""
    dora: bool = False
    """peft's use_dora: length and direction of the weights learn apart; their whole product is made in each pass."""
    dtype: FloatDtype | None = None
    """Of the adapters. Left out: peft's rule, fp32 on a half-precision base."""
    cast_inputs: bool = True
    """peft turns what goes into an adapter into the adapter's dtype, a copy that is kept. false: no copy is made, as by
    kohya's adapters."""


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
    """Source: a Python function that returns the module, "package.module:function" or "file.py:function". In a file it
    needs --allow-code, as every `factory` does."""
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
    """Keyword arguments of the factory, the timm or torchvision builder, or of from_config (attn_implementation). For
    libraries: those that say what the network is like; weights are never loaded."""
    liger: bool = False
    """transformers: Liger Kernel's fused norms, activations, rotary embeddings and loss, as its trainers apply them.
    It must be installed; its kernels are Triton and need no GPU here."""
    trust_remote_code: bool = False
    """Let transformers run the Python code that lies in the folder. In a file it needs --allow-code."""

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
    keep_fp32: list[str] = []
    """Parameters whose name matches one of these patterns are in fp32 whatever the dtype of the others, e.g.
    ["*norm*", "lm_head"]. Weights that are quantized stay so."""
    quantization: Literal["none", "int8", "nf4"] = "none"
    """bitsandbytes' 8-bit or 4-bit weights of all linear layers but the head, for a frozen component or LoRA. peft's
    prepare_model_for_kbit_training, which turns the other weights into fp32, is not applied."""
    quantize_experts: bool = False
    """With quantization: nf4. Experts that are one three-dimensional parameter, as transformers 5 has them, are no
    linear layers and stay as they are; true: they become 4-bit too, by bitsandbytes' replace_parameter_4bit, as by
    axolotl's quantize_moe_experts."""
    channels_last: bool = False
    """Weights in channels-last layout, into which they are brought on the card."""
    built_on: Literal["cpu", "gpu"] = "cpu"
    """gpu: it is built on the card in fp32 and brought into its dtype there (`with torch.device("cuda")`). What that
    leaves behind stays in the allocator's cache."""
    prepare: list[Name] = []
    """Methods of the model that are called once, without arguments, before it is trained, e.g. freeze_feature_encoder
    or enable_input_require_grads. One that is not known to be harmless counts as code (--allow-code)."""
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
    """The method called instead of the module itself, e.g. encode of an autoencoder or get_text_features. One that is
    not known to be a forward pass counts as code (--allow-code)."""
    inputs: dict[ArgumentName, Reference] | list[Reference] | None = None
    """What it is called with: argument name → an input or another component's output ("text.last_hidden_state"), or a
    list of them in order. "a.b" as an argument name is key b of a dict a, "a.0" the first of a tuple a. Left out: where
    the job has `inputs`, those that its forward takes by name (or else all but the targets, in order); where it has
    none, the usual inputs of this kind of model, made from its config and the sizes."""
    options: Arguments = {}
    """Further arguments of the call that are no tensors, e.g. {return_dict: false}."""
    no_grad: bool | None = None
    """Call it without recording gradients. Left out: true for what is not trained, but for a loss network."""
    autocast: bool = True
    """false: it is called outside autocast, as diffusers' training scripts call what is frozen."""
    checkpointing: Annotated[Checkpointing, short("scope", str, Checkpointing)] | None = None
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
            listed = " and ".join(given) if given else "none of them"
            raise ValueError(f"a component has exactly one of {', '.join(SOURCES)}; this one has {listed}")
        if self.same_as is not None and (extra := sorted(set(self.changed_fields) - _FIELDS_OF_A_CALL)):
            raise ValueError(
                f"`{extra[0]}` is said where the component itself stands ({self.same_as}), not beside same_as"
            )
        if self.lora is not None and self.mode != "lora":
            raise ValueError(f"`lora` is given but mode is {self.mode}: write mode: lora")
        if self.quantization != "none" and self.mode == "trained":
            raise ValueError("quantized weights cannot be trained: write mode: lora or frozen")
        if self.quantize_experts and self.mode == "trained":
            raise ValueError("quantized experts cannot be trained: write mode: lora or frozen")
        if self.device == "cpu" and self.offload not in (None, "none"):
            raise ValueError("a component that stays on the CPU is not offloaded: leave device or offload out")
        if self.device == "cpu" and self.is_trained:
            raise ValueError("a component that stays on the CPU cannot be trained here: write mode: frozen")
        for name, needs in (("subfolder", ("diffusers", "transformers")), ("task", ("transformers",))):
            if getattr(self, name) is not None and given[0] not in needs:
                raise ValueError(f"`{name}` is only for {' and '.join(needs)}, not {given[0]}")
        return self
