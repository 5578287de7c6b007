"""What to do by hand where no config can say a change: a variable of the environment, or a line of Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramcast.jobs.editing.yaml_text import one_line
from vramcast.jobs.load import with_overrides
from vramcast.jobs.optimizer_names import class_path
from vramcast.jobs.schema import Job, Lora

_DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32", "fp64": "torch.float64"}

_QUANTIZED = {
    "nf4": 'load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype={half}',
    "int8": "load_in_8bit=True",
}


def by_hand(job: Job, changes: Mapping[str, Any]) -> tuple[str, ...]:
    """One line for each of `changes` (dotted key → value), as they are in `job`."""
    wanted = with_overrides(job, changes)
    return tuple(dict.fromkeys(_line(key, value, wanted) for key, value in changes.items()))


def _offload(part: str, job: Job) -> str:
    """A job's `offload` in Python."""
    wish = job.offload
    if part in ("activations", "pinned"):
        pinned = "pin_memory=True" if wish.pinned else ""
        return f"with torch.autograd.graph.save_on_cpu({pinned}):  # around the forward pass"
    if part in ("optimizer", "gradients"):
        gradients = ", offload_gradients=True" if wish.gradients else ""
        return f"torchao.optim.CPUOffloadOptimizer(parameters, optimizer class{gradients})"
    names = ", ".join(name for name in job.components if job.offload_of(name) != "none")
    if wish.components == "sequential":
        return f'accelerate.cpu_offload(component, torch.device("cuda"))  # for {names}'
    if job.task == "inference":
        return f"accelerate.cpu_offload_with_hook(component, prev_module_hook=hook)  # for {names}"
    return f'component.to("cuda")  # before its call, .to("cpu") after it, for {names}'


def _line(key: str, value: Any, job: Job) -> str:
    match key.split("."):
        case ["allocator_conf"]:
            return f"export PYTORCH_CUDA_ALLOC_CONF={value}"
        case ["offload", part] if value not in (False, "none"):
            return _offload(part, job)
        case ["loss", *_] if job.loss and job.loss[0].chunks > 1:
            pieces = f"hidden.chunk({job.loss[0].chunks}, dim=1)"
            return f"torch.utils.checkpoint.checkpoint(head_and_cross_entropy, piece)  # for each of {pieces}"
        case ["accumulation"]:
            return f"(loss / {job.accumulation}).backward()  # optimizer.step() after every {job.accumulation} of them"
        case ["sizes", "batch"] | ["gpus", "global_batch"]:
            return f"DataLoader(..., batch_size={job.effective_sizes['batch']})  # of each GPU"
        case ["sizes", "sequence"]:
            return f"tokenizer(..., truncation=True, max_length={value})"
        case ["sizes", "height" | "width"]:
            sizes = job.effective_sizes
            return f"crops of {sizes.get('height', '?')} × {sizes.get('width', '?')} from the data loader"
        case ["sizes", "frames"]:
            return f"clips of {value} frames from the data loader"
        case ["checkpointing", *_]:
            return _checkpointing(job)
        case ["precision", *_]:
            return _precision(job)
        case ["optimizer", *_] if len(job.optimizer) == 1 and class_path(job.optimizer[0].name):
            wish = job.optimizer[0]
            arguments = "".join(f", {name}={argument!r}" for name, argument in wish.arguments.items())
            return f"optimizer = {class_path(wish.name)}(parameters{arguments})"
        case ["gpus", "count"]:
            return f"torchrun --nproc_per_node {value}  # start it on {value} GPU{'s' if value > 1 else ''}"
        case ["gpus", "gradient_as_bucket_view"]:
            return f"DistributedDataParallel(..., gradient_as_bucket_view={value})"
        case ["set_to_none"]:
            return f"optimizer.zero_grad(set_to_none={value})"
        case ["evaluation"] if value is None:
            return "leave the evaluation out"
        case ["components", name, "mode"] if value == "frozen":
            return f"{name}.requires_grad_(False).eval()"
        case ["components", name, "freeze"]:
            return f"parameter.requires_grad_(False)  # of {name}, where its name matches {one_line(value)}"
        case ["components", name, "dtype"]:
            return f"{name} = ....from_pretrained(..., dtype={_DTYPES[value]})"
        case ["components", name, "quantization"] if value in _QUANTIZED:
            settings = _QUANTIZED[value].format(half=_DTYPES[job.half_of(name)])
            config = f"transformers.BitsAndBytesConfig({settings})"
            return f"{name} = ....from_pretrained(..., quantization_config={config})"
        case ["components", name, "quantize_experts"]:
            call = 'bitsandbytes.nn.parametrize.replace_parameter_4bit(experts, "gate_up_proj")'
            return f"{call}  # of each layer's experts in {name}, and down_proj; axolotl: quantize_moe_experts: true"
        case ["components", name, "lora", "targets"]:
            return f"target_modules={value!r}  # in peft.LoraConfig of {name}"
        case ["components", name, "mode"] if value == "lora":
            rank = (job.components[name].lora or Lora()).rank
            return f"{name} = peft.get_peft_model({name}, peft.LoraConfig(r={rank}, lora_alpha={2 * rank}))"
    return f"{key}: {one_line(value)}  # as vramcast.yaml says it"


def _checkpointing(job: Job) -> str:
    wish = job.checkpointing
    name, part = next((named for named in job.components.items() if named[1].is_trained), ("model", None))
    if wish.scope == "none":
        return "no torch.utils.checkpoint.checkpoint around the blocks"
    blocks = "each block" if wish.scope == "all" else f"the blocks {', '.join(wish.modules)}"
    if part is not None and wish.scope == "all" and part.transformers is not None:
        return f'{name}.gradient_checkpointing_enable({{"use_reentrant": {wish.reentrant}}})'
    if part is not None and wish.scope == "all" and part.diffusers is not None:
        return f"{name}.enable_gradient_checkpointing()"
    return f"torch.utils.checkpoint.checkpoint(block, x, use_reentrant={wish.reentrant})  # around {blocks}"


def _precision(job: Job) -> str:
    wish = job.precision
    lines = []
    if wish.weights_dtype != "fp32":
        lines.append(f"model.to({_DTYPES[wish.weights_dtype]})")
    if wish.autocast_dtype != "none":
        dtype = _DTYPES[wish.autocast_dtype]
        scaler = ", and a torch.amp.GradScaler" if wish.uses_grad_scaler else ""
        lines.append(f'with torch.autocast("cuda", dtype={dtype}):  # around the forward pass and the loss{scaler}')
    return "; ".join(lines) or "no torch.autocast, weights in fp32"
