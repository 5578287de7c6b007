"""torchtitan TOML: the flavors of llama3 as a transformers LlamaForCausalLM of the same sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vramcast.base.errors import UsageError
from vramcast.jobs.optimizer_names import plain
from vramcast.jobs.readers import Edits, Part, Reading, Request, combine
from vramcast.jobs.readers.documents import peek, read_document
from vramcast.jobs.readers.keys import Keys, unused_note
from vramcast.jobs.references import nearest
from vramcast.jobs.schema import Job
from vramcast.trace import Note

NAME = "torchtitan config"
STEPS = "training.steps"
"""What it calls the number of optimizer steps."""
BASE = Path(__file__).parent / "llama3"

FLAVORS: dict[str, dict[str, int]] = {
    "debugmodel": {
        "hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 16, "num_key_value_heads": 16,
        "intermediate_size": 768, "vocab_size": 2048,
    },
    "8B": {},
    "70B": {
        "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "intermediate_size": 28672,
    },
    "405B": {
        "hidden_size": 16384, "num_hidden_layers": 126, "num_attention_heads": 128, "intermediate_size": 53248,
    },
}  # fmt: skip
"""What differs from 8B, whose config.json lies in llama3/ (torchtitan/models/llama3/__init__.py)."""

_LAYERS = {"debugmodel": 6, "8B": 32, "70B": 80, "405B": 126}
_OTHER_DEGREES = ("context_parallel_degree", "expert_parallel_degree")
"""What a job cannot say; torchtitan's own program can be run instead."""
_SCHEDULE = "1F1B"
_TENSOR_PARALLEL = (
    "tensor parallel by the plan of transformers' model, without torchtitan's sequence and loss parallelism: "
    "activations between the layers and the logits lie whole on every card, so it takes more than torchtitan would"
)
_IMPLEMENTATIONS = {"fused": {"fused": True}, "foreach": {"foreach": True}, "for-loop": {"foreach": False}}
_OPTIMIZERS = {"Adam": "adam", "AdamW": "adamw"}
_BATCHES = ("local_batch_size", "batch_size")
_DEFAULT_BATCH, _DEFAULT_LENGTH = 8, 2048
_SECTIONS = ("model", "training", "parallelism", "activation_checkpoint", "optimizer", "job")


def recognises(path: Path) -> bool:
    keys = peek(path, ".toml")
    model = keys.get("model")
    flavored = isinstance(model, dict) and "flavor" in model
    return flavored or sum(isinstance(keys.get(name), dict) for name in _SECTIONS) >= 3


def read(path: Path, request: Request) -> Reading:
    return combine.complete([read_part(path, request)], request)


def read_part(path: Path, request: Request) -> Part:
    keys = Keys.of(read_document(path), str(path))
    notes: list[Note] = []
    assumed: dict[str, str] = {}
    unsupported: dict[str, str] = {}
    training = keys.section("training")
    batch = training.whole(training.first(_BATCHES) or _BATCHES[0]) or _DEFAULT_BATCH
    gpus = _gpus(keys.section("parallelism"), training, assumed, unsupported)
    of_one_pass = batch * gpus["count"] // (gpus.get("tensor", 1) * gpus.get("pipeline", 1))
    passes = 1
    if "pipeline" in gpus:
        batch, passes = _microbatches(keys.section("parallelism"), batch, unsupported)
    data: dict[str, Any] = {
        "name": path.stem,
        "sizes": {"batch": batch, "sequence": training.whole("seq_len") or _DEFAULT_LENGTH},
        "precision": {"preset": _precision(training)},
        "optimizer": _optimizer(keys.section("optimizer"), unsupported),
        "gpus": gpus,
        "outputs_live_until": "forward",
    }
    data["checkpointing"] = _checkpointing(keys.section("activation_checkpoint"), _layers(keys), unsupported)
    if request.model is None:
        data["components"] = {"model": _model(keys.section("model"), notes)}
    norm = training.number("max_norm")
    if norm != 0:
        data["gradient_clipping"] = norm or 1.0
    total = training.take("global_batch_size")
    if total not in (None, -1):
        passes *= _accumulation(training, of_one_pass)
    if passes > 1 or total not in (None, -1):
        data["accumulation"] = passes
    compiled = keys.section("compile")
    if training.flag("compile") or compiled.flag("enable"):
        data["torch_compile"] = True
    compiled.as_dict()
    converters = keys.section("model").take("converters")
    if converters:
        unsupported["components"] = f"model.converters: {converters} is not modelled; leave it out"
    keys.section("model").as_dict()
    notes += unused_note(keys.unused(), str(path))
    kind = NAME if request.model else f"{NAME} (llama3 {keys.section('model').text('flavor') or 'debugmodel'})"
    return Part(
        data=data, recognised_as=kind, where=str(path), notes=tuple(notes), assumed=assumed, unsupported=unsupported
    )


def _model(keys: Keys, notes: list[Note]) -> dict[str, Any]:
    name, flavor = keys.text("name") or "llama3", keys.text("flavor") or "debugmodel"
    if name != "llama3":
        keys.fail(
            "name", f"the sizes of {name!r} are not known, only those of llama3: name a model folder with --model"
        )
    if flavor not in FLAVORS:
        keys.fail("flavor", f"there is no {flavor!r}{nearest(flavor, FLAVORS)}")
    notes.append(Note("model", f"llama3 {flavor} is predicted as transformers' LlamaForCausalLM of the same sizes"))
    return {"transformers": str(BASE), "config": FLAVORS[flavor]}


def _precision(training: Keys) -> str:
    weights = training.text("mixed_precision_param", ("bfloat16", "float32")) or "bfloat16"
    training.ignore("mixed_precision_reduce")
    return "bf16" if weights == "bfloat16" else "fp32"


def _optimizer(keys: Keys, unsupported: dict[str, str]) -> dict[str, Any]:
    name = keys.text("name", _OPTIMIZERS) or "AdamW"
    how = keys.text("implementation", _IMPLEMENTATIONS)
    if how is None:
        how = "for-loop" if keys.flag("fused") is False else "fused"
    if keys.flag("early_step_in_backward"):
        unsupported["optimizer"] = (
            "optimizer.early_step_in_backward is not modelled; name an optimizer with --optimizer"
        )
    return {"name": _OPTIMIZERS[name], "arguments": _IMPLEMENTATIONS[how]}


def _gpus(keys: Keys, training: Keys, assumed: dict[str, str], unsupported: dict[str, str]) -> dict[str, Any]:
    for name in _OTHER_DEGREES:
        if (keys.whole(name) or 1) > 1:
            unsupported["gpus"] = (
                f"{keys.name_of(name)} above 1 cannot be said by a job; `vramcast run torchrun --nproc-per-node 8 -m "
                "torchtitan.train ...` runs torchtitan itself, and --set gpus.count=1 predicts without it"
            )
    tensor, stages = (keys.whole(f"{name}_parallel_degree") or 1 for name in ("tensor", "pipeline"))
    divided = {"tensor": tensor} if tensor > 1 else {}
    if stages > 1:
        divided["pipeline"] = stages
    if tensor > 1:
        assumed["gpus"] = _TENSOR_PARALLEL
    copies = keys.whole("data_parallel_replicate_degree") or 1
    shards = keys.whole("data_parallel_shard_degree", least=-1)
    reshard = keys.text("fsdp_reshard_after_forward", ("default", "always", "never")) != "never"
    offload = {"offload_parameters": True} if training.flag("enable_cpu_offload") else {}
    if shards is not None and shards > 1:
        strategy = {"strategy": "fsdp"} if copies == 1 else {"strategy": "hsdp", "replicas": copies}
        count = copies * shards * tensor * stages
        return {"count": count, **strategy, "reshard_after_forward": reshard, **divided, **offload}
    if divided:
        count = copies * tensor * stages
        if shards == 1:
            return {"count": count, **divided, **offload}
        known = assumed.get("gpus")
        least = f"{count} GPUs: data_parallel_shard_degree = -1 leaves their number open (--gpus N)"
        assumed["gpus"] = least if known is None else f"{least}; {known}"
        strategy = {"strategy": "fsdp"} if copies == 1 else {"strategy": "hsdp", "replicas": copies}
        return {"count": count, **strategy, "reshard_after_forward": reshard, **divided, **offload}
    if shards in (None, -1, 0):
        text = "one GPU: data_parallel_shard_degree = -1 shards over as many as are started, which is not modelled"
        assumed["gpus"] = text if copies == 1 else f"{copies} GPUs, not sharded: {text.partition(': ')[2]}"
    return {"count": copies, **offload}


def _microbatches(keys: Keys, batch: int, unsupported: dict[str, str]) -> tuple[int, int]:
    """A pipeline's microbatch, and how many of them a pass has."""
    schedule = keys.text("pipeline_parallel_schedule") or _SCHEDULE
    if schedule.lower() != _SCHEDULE.lower():
        unsupported["gpus"] = (
            f"{keys.name_of('pipeline_parallel_schedule')}: {schedule} is not modelled, only {_SCHEDULE}; "
            "--set gpus.pipeline=1 predicts without a pipeline"
        )
    micro = keys.whole("pipeline_parallel_microbatch_size") or 1
    if batch % micro:
        keys.fail("pipeline_parallel_microbatch_size", f"a batch of {batch} cannot be cut into microbatches of {micro}")
    return micro, batch // micro


def _checkpointing(keys: Keys, layers: int, unsupported: dict[str, str]) -> dict[str, Any]:
    mode = keys.text("mode", ("none", "full", "selective", "memory_budget")) or "selective"
    option = str(keys.take("selective_ac_option") or "2")
    if mode in ("none", "full"):
        return {"scope": "none" if mode == "none" else "all"}
    if mode == "selective" and option.isdecimal() and len(option) < 10 and int(option) > 0 and layers:
        chosen = _every(int(option), layers)
        return {"scope": "modules", "modules": chosen} if chosen else {"scope": "none"}
    what = f"mode = {mode}" if mode != "selective" else f"selective_ac_option = {option}"
    unsupported["checkpointing"] = (
        f"activation_checkpoint.{what} is not modelled; what it takes lies between --checkpointing all and none"
    )
    return {"scope": "none"}


def _layers(keys: Keys) -> int:
    return _LAYERS.get(keys.section("model").text("flavor") or "debugmodel", 0)


def _every(number: int, layers: int) -> list[str]:
    """The layers that are checkpointed when every n-th is."""
    return [f"model.layers.{i}" for i in range(number - 1, layers, number)]


def _accumulation(training: Keys, of_one_pass: int) -> int:
    total = training.whole("global_batch_size") or of_one_pass
    if total % of_one_pass:
        raise UsageError(
            f"{training.where}: training.global_batch_size: {total} is no multiple of {of_one_pass}, the samples of "
            "one pass on all GPUs"
        )
    return total // of_one_pass


def edits(keys: Keys, aspect: str, job: Job) -> Edits:
    training = keys.section("training")
    match aspect:
        case "batch" | "accumulation":
            batch = job.effective_sizes["batch"]
            changes: Edits = {("training", training.first(_BATCHES) or _BATCHES[0]): batch}
            if job.accumulation > 1 or training.take("global_batch_size") not in (None, -1):
                changes[("training", "global_batch_size")] = batch * job.gpus.count * job.accumulation
            return changes
        case "sequence":
            return {("training", "seq_len"): job.sizes["sequence"]}
        case "precision" if job.precision.preset in ("bf16", "fp32"):
            spelt = "bfloat16" if job.precision.preset == "bf16" else "float32"
            return {("training", "mixed_precision_param"): spelt}
        case "optimizer" if len(job.optimizer) == 1:
            return _optimizer_edits(plain(job.optimizer[0].name), job.optimizer[0].arguments)
        case "checkpointing":
            return _checkpointing_edits(keys, job)
        case "gpus":
            return {("parallelism", "data_parallel_replicate_degree"): job.gpus.count}
    return {}


def _optimizer_edits(name: str, arguments: dict[str, Any]) -> Edits:
    spelt = next((spelling for spelling, of_job in _OPTIMIZERS.items() if of_job == name), None)
    how = next((spelling for spelling, of_job in _IMPLEMENTATIONS.items() if of_job == arguments), None)
    if spelt is None or how is None:
        return {}
    return {("optimizer", "name"): spelt, ("optimizer", "implementation"): how}


def _checkpointing_edits(keys: Keys, job: Job) -> Edits:
    wish, layers = job.checkpointing, _layers(keys)
    mode = ("activation_checkpoint", "mode")
    if wish.scope != "modules":
        return {mode: "full" if wish.scope == "all" else "none"}
    number = next((n for n in range(1, layers + 1) if _every(n, layers) == wish.modules), None)
    return {mode: "selective", ("activation_checkpoint", "selective_ac_option"): str(number)} if number else {}
