"""What a training script says of itself, read from its syntax tree. Nothing of it is run or imported."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vramcast.base.errors import UsageError
from vramcast.base.input_files import read_bytes

_LARGEST_BYTES = 5_000_000

_SIZES = (
    ("sizes.batch", re.compile(r"(?:^|_)(?:micro_?)?(?:batch_?size|bs)$|^per_device_train_batch_size$|^batch$")),
    ("sizes.sequence", re.compile(r"(?:seq|sequence|block|context|ctx)_?(?:len|length|size)?$|^max_(?:seq_)?length$")),
    ("sizes.frames", re.compile(r"^(?:num_?|n_)?frames$")),
    ("sizes.height", re.compile(r"^(?:height|image_?size|img_?size|crop_?size|resolution)$")),
    ("sizes.width", re.compile(r"^(?:width|image_?size|img_?size|crop_?size|resolution)$")),
    ("accumulation", re.compile(r"accum")),
    ("gradient_clipping", re.compile(r"^(?:max_)?grad(?:ient)?_?(?:norm|clip)|^clip(?:_grad)?(?:_norm)?$")),
    ("dataset.epochs", re.compile(r"^(?:num_?|n_|max_)?(?:train_)?epochs$")),
)
"""Names of variables and options that mean a field of a job. The first that matches counts, height with width."""

_OPTIMIZERS = re.compile(
    r"^(?:Paged)?(?:Adam|AdamW|SGD|RMSprop|Adagrad|Adadelta|Adamax|NAdam|RAdam|Adafactor|Lion|Muon|ASGD|Rprop)(?:8bit)?$"
)
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "bf16": "bf16", "fp16": "fp16"}
_CHECKPOINTING = ("gradient_checkpointing_enable", "enable_gradient_checkpointing", "set_grad_checkpointing")


@dataclass(frozen=True, slots=True)
class Finding:
    """A value that the script has for a field of a job."""

    key: str
    value: str
    line: int
    what: str
    """How the script says it."""


@dataclass(frozen=True, slots=True)
class Option:
    """An argument that the script takes on its command line."""

    flag: str
    default: Any
    needed: bool

    @property
    def words_to_fill_in(self) -> list[str]:
        return [self.flag, "???"] if self.flag.startswith("-") else ["???"]

    @property
    def words(self) -> list[str]:
        """The option as it would be written on the command line, with its default."""
        return [self.flag] if self.default is None or isinstance(self.default, bool) else [self.flag, str(self.default)]


@dataclass(slots=True)
class Outline:
    options: list[Option] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    models: list[tuple[int, str]] = field(default_factory=list)
    """(line, source text) of what looks like the making of a model."""

    def first(self, key: str) -> Finding | None:
        return next((finding for finding in self.findings if finding.key == key), None)


def outline(path: Path) -> Outline:
    """UsageError where the file is no Python script."""
    tree = _parse(path)
    script = Outline()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            _number(script, node.targets[0].id, node.value, node.lineno, f"{node.targets[0].id} = …")
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            _number(script, node.target.id, node.value, node.lineno, f"{node.target.id} = …")
        elif isinstance(node, ast.Call):
            _call(script, node)
    script.findings.sort(key=lambda finding: finding.line)
    script.models.sort()
    return script


def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(read_bytes(path, _LARGEST_BYTES), str(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        reason = error.args[0] if error.args else type(error).__name__
        raise UsageError(f"{path}{line}: not a Python script: {reason}") from None


def _call(script: Outline, call: ast.Call) -> None:
    name = _dotted(call.func)
    last = name.rpartition(".")[2]
    if last == "add_argument":
        _option(script, call)
        return
    if _OPTIMIZERS.match(last):
        script.findings.append(Finding("optimizer", last.lower(), call.lineno, name))
    elif last == "clip_grad_norm_" and len(call.args) > 1:
        _field(script, "gradient_clipping", call.args[1], call.lineno, name)
    elif last in _CHECKPOINTING:
        script.findings.append(Finding("checkpointing", "all", call.lineno, f"{last}()"))
    elif last == "AveragedModel" or re.search(r"(?:^|_)ema", last, re.IGNORECASE):
        script.findings.append(Finding("ema", "true", call.lineno, name))
    elif last == "autocast":
        dtype = next((d for value in _values(call) if (d := _dtype(value))), "fp16")
        script.findings.append(Finding("precision", dtype, call.lineno, name))
    elif _makes_a_model(name, last):
        script.models.append((call.lineno, _short(ast.unparse(call))))
    for keyword in call.keywords:
        if keyword.arg in ("bf16", "fp16") and isinstance(keyword.value, ast.Constant) and keyword.value.value is True:
            script.findings.append(Finding("precision", keyword.arg, call.lineno, f"{name}({keyword.arg}=True)"))
        elif keyword.arg == "mixed_precision" and (mixed := _dtype(keyword.value)):
            script.findings.append(Finding("precision", mixed, call.lineno, f"{name}(mixed_precision=…)"))
        elif keyword.arg is not None:
            _number(script, keyword.arg, keyword.value, call.lineno, f"{name}({keyword.arg}=…)")


def _makes_a_model(name: str, last: str) -> bool:
    if last in ("from_pretrained", "from_config", "create_model", "get_model"):
        return not re.search(r"Tokenizer|Processor|FeatureExtractor|Scheduler|Config", name)
    return (
        name.startswith(("torchvision.models.", "models."))
        or re.search(r"(?:For[A-Z]\w+|LMHeadModel)$", last) is not None
    )


def _option(script: Outline, call: ast.Call) -> None:
    flags = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    if not flags:
        return
    flag = next((flag for flag in flags if flag.startswith("--")), flags[0])
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    default, needed = keywords.get("default"), keywords.get("required")
    value = _constant(default) if default is not None else None
    is_needed = not flag.startswith("-") or (isinstance(needed, ast.Constant) and bool(needed.value))
    script.options.append(Option(flag, value, is_needed))
    if default is not None:
        _number(script, flag.lstrip("-").replace("-", "_"), default, call.lineno, flag)


def _number(script: Outline, name: str, value: ast.expr, line: int, what: str) -> None:
    """A finding for every field that a variable of this name may mean."""
    for key, pattern in _SIZES:
        if pattern.search(name.lower()):
            _field(script, key, value, line, what)


def _field(script: Outline, key: str, value: ast.expr, line: int, what: str) -> None:
    number = _constant(value)
    if isinstance(number, bool) or not isinstance(number, (int, float)) or number <= 0:
        return
    if isinstance(number, float) and key != "gradient_clipping":
        return
    script.findings.append(Finding(key, str(number), line, what))


def _constant(value: ast.expr) -> Any:
    """A literal's value, or None."""
    try:
        return ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _values(call: ast.Call) -> Iterator[ast.expr]:
    yield from call.args
    for keyword in call.keywords:
        yield keyword.value


def _dtype(value: ast.expr) -> str | None:
    word = value.value if isinstance(value, ast.Constant) else _dotted(value).rpartition(".")[2]
    return _DTYPES.get(word) if isinstance(word, str) else None


def _dotted(node: ast.expr) -> str:
    """ "torch.optim.AdamW"; what is not a name stands as "…"."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return "…"


def _short(text: str, most: int = 80) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"
