"""Options of the verbs that take a job: the job itself, and changes to it."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from vramcast.base.access import CodeGate, CodePlace
from vramcast.base.language import sentence
from vramcast.cli.cards_options import several_gpus_changes
from vramcast.cli.options import add_write_through_option, positive

if TYPE_CHECKING:
    from vramcast.jobs.load import LoadedJob

_SIZES = {"batch": "batch", "seq": "sequence", "frames": "frames", "height": "height", "width": "width"}
_ALSO = {"batch": ("--batch-size",), "seq": ("--sequence", "--seq-len"), "frames": ("--num-frames",)}
"""Other names of the same options, as training scripts spell them."""
_DTYPES = {
    "fp32": "fp32", "float32": "fp32", "bf16": "pure-bf16", "bfloat16": "pure-bf16", "fp16": "pure-fp16",
    "float16": "pure-fp16", "half": "pure-fp16",
}  # fmt: skip
"""--dtype: of the weights, and with them of gradients and optimizer state."""
_SETTINGS = {
    "precision": ("precision", "fp32, tf32, bf16, fp16, pure-bf16 or pure-fp16"),
    "optimizer": ("optimizer", "adamw, sgd, adamw8bit, ..."),
    "checkpointing": ("checkpointing", "none or all"),
}
JOB_HELP = "a vramcast.yaml, a model folder, a training config, or package.module:function"


def add_job_argument(parser: argparse.ArgumentParser, **more: Any) -> None:
    """`JOB`, or `--config FILE`, or `--model-path FOLDER`."""
    parser.add_argument("job", metavar="JOB", nargs="?", help=more.pop("help", JOB_HELP), **more)
    parser.add_argument("--config", "--model-path", metavar="FILE", dest="config", help="the same as JOB")


def add_job_options(parser: argparse.ArgumentParser, without: tuple[str, ...] = ()) -> None:
    """`without`: sizes that the verb has an option of its own for."""
    sizes = parser.add_argument_group("sizes, of one GPU's batch")
    parser.set_defaults(**{f"size_{_SIZES[option]}": None for option in without})
    for option, size in _SIZES.items():
        if option in without:
            continue
        names = (f"--{option}", *_ALSO.get(option, ()))
        sizes.add_argument(*names, dest=f"size_{size}", type=positive, metavar="N")
    settings = parser.add_argument_group("settings")
    for option, (_, help_text) in _SETTINGS.items():
        settings.add_argument(f"--{option}", metavar="NAME", help=help_text)
    settings.add_argument(
        "--dtype", metavar="NAME", help="data type of the weights, without autocast: fp32, bf16 or fp16"
    )
    settings.add_argument(
        "--fraction", type=float, metavar="SHARE",
        help="PyTorch may reserve this share of the card, as set_per_process_memory_fraction says",
    )  # fmt: skip
    settings.add_argument("--inference", action="store_true", help="forward passes only")
    settings.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="changes",
        help="any field of the job (docs/jobs.md), e.g. components.model.mode=frozen; may be given several times",
    )  # fmt: skip
    settings.add_argument(
        "--with", action="append", default=[], metavar="FILE", dest="parts",
        help="a config that says a part of the job: accelerate, DeepSpeed, TrainingArguments; may be repeated",
    )  # fmt: skip
    settings.add_argument(
        "--model", metavar="MODEL", help="a model folder or package.module:function, for a config that names none"
    )
    settings.add_argument(
        "--trust-remote-code", action="store_true", help="run Python code that lies in the model folder"
    )
    add_write_through_option(settings)
    add_code_option(settings)
    plain = parser.add_argument_group("a plain network instead of JOB")
    plain.add_argument("--arch", metavar="KIND", help="fno, unet, ddpm or transformer, with its usual layers")
    plain.add_argument("--hidden-dim", type=positive, metavar="N", help="channels of a layer's output")
    plain.add_argument("--num-layers", type=positive, metavar="N", help="number of layers")


def add_code_option(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--allow-code", action="store_true",
        help="run the Python code that the job's files name: factories, scripts, class paths, code in model folders",
    )  # fmt: skip


def load(args: argparse.Namespace, argument: str | None = None) -> LoadedJob:
    """The job that was named, with the options put in."""
    from vramcast.jobs.load import load_job
    from vramcast.jobs.readers import Request

    named = job_named(args) if argument is None else argument
    if getattr(args, "arch", None) is not None:
        return _plain_network(args, named)
    request = Request(
        model=args.model,
        trust_remote_code=args.trust_remote_code,
        parts=tuple(args.parts),
        arguments=tuple(getattr(args, "script_flags", ())),
        gate=gate_of(args),
    )
    return load_job(named, overrides(args), request)


def _plain_network(args: argparse.Namespace, named: str | None) -> LoadedJob:
    from vramcast.base.errors import UsageError
    from vramcast.jobs.load import load_kind
    from vramcast.jobs.readers import Request

    if named is not None:
        raise UsageError(f"--arch {args.arch}: {named} is named too; leave one out")
    changes = overrides(args)
    sizes = {key.partition(".")[2]: changes.pop(key) for key in list(changes) if key.startswith("sizes.")}
    request = Request(gate=gate_of(args))
    return load_kind(args.arch, sizes, args.hidden_dim, args.num_layers, changes, request)


def job_named(args: argparse.Namespace) -> str | None:
    """What stands in the place of JOB, or behind --config or --model-path."""
    from vramcast.base.errors import UsageError

    job: str | None = args.job
    config: str | None = getattr(args, "config", None)
    if config is not None and job is not None:
        raise UsageError(f"{job} and {config}: two jobs are named; leave one out")
    return job if config is None else config


def load_alone(args: argparse.Namespace) -> LoadedJob | None:
    """The job of a verb that takes no changes to it, where one was named."""
    from vramcast.jobs.load import load_job
    from vramcast.jobs.readers import Request

    return None if args.job is None else load_job(args.job, request=Request(gate=gate_of(args)))


def gate_of(args: argparse.Namespace) -> CodeGate:
    """The gate of the whole command, so that nothing is asked twice."""
    if not hasattr(args, "gate"):
        args.gate = CodeGate(allowed=args.allow_code, ask=ask_in_terminal)
    gate: CodeGate = args.gate
    return gate


def ask_in_terminal(places: tuple[CodePlace, ...]) -> bool:
    """Whether the code that files name may run; no, where there is no terminal to ask in."""
    if sys.stdin is None or not sys.stdin.isatty() or not sys.stderr.isatty():
        return False
    print(*places, sep="\n", file=sys.stderr)
    subject = "which runs" if len(places) == 1 else "each of which runs"
    question = sentence(f"{subject} Python code that you may not have written; run it? [y/N]")
    print(f"{question} ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def overrides(args: argparse.Namespace) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for size in _SIZES.values():
        value = getattr(args, f"size_{size}")
        if value is not None:
            changes[f"sizes.{size}"] = value
    for option, (key, _) in _SETTINGS.items():
        value = getattr(args, option)
        if value is not None:
            changes[key] = value
    if getattr(args, "dtype", None) is not None:
        changes["precision"] = _precision(args)
    if args.fraction is not None:
        changes["target.fraction"] = args.fraction
    if args.inference:
        changes["task"] = "inference"
    changes |= several_gpus_changes(args)
    for change in args.changes:
        key, value = parse_change(change)
        changes[key] = value
    return changes


def _precision(args: argparse.Namespace) -> str:
    from vramcast.base.errors import UsageError

    name = args.dtype.removeprefix("torch.")
    if name not in _DTYPES:
        raise UsageError(f"--dtype {args.dtype}: write one of {', '.join(_DTYPES)}")
    if args.precision is not None:
        raise UsageError(f"--dtype {args.dtype} and --precision {args.precision}: leave one out")
    return _DTYPES[name]


def parse_change(text: str, option: str = "--set") -> tuple[str, Any]:
    """KEY=VALUE, the value being YAML."""
    from vramcast.base.errors import UsageError
    from vramcast.jobs.yaml_file import parse_yaml

    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"{option} {text}: write KEY=VALUE, e.g. components.model.mode=frozen")
    parsed, _ = parse_yaml(value, f"{option} {key}")
    return key.strip(), parsed
