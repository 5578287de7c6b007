"""Every message that the code asks a catalogue for.

Three kinds: texts in calls of `say`, texts of the scripts, and sentences that are put together in English where they
arise and are looked up when they are shown (`sentence` of base/language.py): errors, notes, help, lines of pages, and
what features suggest. An f-string is known by its text with {0}, {1} in place of its values.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from vramcast.base.access import SAYS
from vramcast.card.device.machine import ASSUMED
from vramcast.cli.parser import OWN_TEXTS
from vramcast.report.html_document import script_messages
from vramcast.report.names import NAMES
from vramcast.serve.sources import EXAMPLES
from vramcast.trace.schema import COMPUTED_VALUES, FROZEN_WEIGHTS, UNKNOWN_SIZE

PACKAGE = Path(__file__).parents[1] / "src" / "vramcast"
ASKING = ("say", "_said")
SHOWN = (
    *("report", "features/advise", "features/what_if", "features/check", "features/plan", "features/table"),
    *("features/diagnose", "features/compare", "features/explain", "features/watch", "features/sweep"),
)
"""Folders whose sentences are all shown to somebody."""
PARTLY_SHOWN = ("timing", "prediction", "memory")
"""Where sentences of four words and more are."""
NOT_SHOWN = ("html_document.py", "svg.py", "names.py", "chrome_trace.py", "documents.py")
READ_BY_USERS = (
    *("scripts", "quick", "gpus", "jobs/validation.py", "jobs/fields.py", "jobs/offload.py", "jobs/references.py"),
    *("jobs/schema", "jobs/folders.py", "jobs/compiling.py", "jobs/expressions.py", "jobs/training/divided.py"),
    *("card/distributed/nccl.py", "card/distributed/process_group.py", "card/values", "card/ops/data_reads.py"),
    *("card/ops/copies.py", "card/ops/sparse.py", "card/ops/deform_conv.py", "card/dispatch/host_ops.py"),
    *(
        "card/dispatch/failures.py",
        "card/dispatch/foreign.py",
        "card/dispatch/missing_files.py",
        "card/dispatch/remedies.py",
        "card/dispatch/modules_elsewhere.py",
        "card/dispatch/unknown.py",
    ),
    *(
        "card/compiled/compiler.py",
        "card/stand_ins/finder.py",
        "card/stand_ins/known.py",
        "card/device/cuda_graphs.py",
        "launchers/python.py",
        "cli/ranks.py",
        "cli/commands",
    ),
    *("cli/progress.py", "cli/watching.py"),
    *("features/measure/worker.py", "features/guard"),
)
"""Where notes and errors are put together from sentences of three words and more."""
UNTRANSLATED = ("mcp", "pytest_plugin.py")
"""Where errors and notes are English: for programs."""


def messages() -> set[str]:
    return asked() | composed()


@cache
def asked() -> frozenset[str]:
    found = {*script_messages(), *NAMES, *(example.title for example in EXAMPLES.values())}
    for path in PACKAGE.rglob("*.py"):
        code = path.read_text(encoding="utf-8")
        if "from vramcast.base.language import" in code:
            found |= set(_of_module(ast.parse(code)))
    return frozenset(found)


def _of_module(tree: ast.Module) -> Iterator[str]:
    """Texts in a call, both of a choice, and those of a variable that has a text in the same module."""
    assigned = _assigned(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ASKING:
            yield from _texts(node.args[0], assigned)


@cache
def composed() -> frozenset[str]:
    found = {one.strip() for one in (*OWN_TEXTS, SAYS, ASSUMED, COMPUTED_VALUES, FROZEN_WEIGHTS, UNKNOWN_SIZE)}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if name.startswith("cli/commands/") and path.name != "__init__.py" and (text := ast.get_docstring(tree)):
            found |= {text.strip(), text.splitlines()[0]}
        if name.startswith("cli/"):
            found |= {*_help(tree), *_named_help(tree)}
        if not name.startswith(UNTRANSLATED):
            found |= set(_raised(tree))
        if name.startswith(SHOWN) and path.name not in NOT_SHOWN:
            found |= {*_sentences(tree, 1), *_headings(tree)}
        if name.startswith(PARTLY_SHOWN):
            found |= set(_sentences(tree, 4))
        if name.startswith(READ_BY_USERS):
            found |= {text for text in _sentences(tree, 3) if not _is_of_others(text)}
    return frozenset({one.strip() for one in found if _has_words(one)} - asked())


def _help(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg in ("help", "description", "epilog"):
                    yield from _texts(keyword.value, _assigned(tree))
            if isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument_group" and node.args:
                yield from _texts(node.args[0], {})


def _named_help(tree: ast.Module) -> Iterator[str]:
    for name, values in _assigned(tree).items():
        if "HELP" in name or name in ("_DESCRIPTION", "_EPILOG"):
            yield from (text for value in values for text in _texts(value, {}))


def _raised(tree: ast.Module) -> Iterator[str]:
    """Texts of errors that are answers, and of notes."""
    assigned = _assigned(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if called in ERRORS or called in ("Note", "note"):
                for argument in node.args[:2]:
                    yield from (text for text in _texts(argument, assigned) if not text.startswith("/"))


ERRORS = (
    "UsageError", "CannotPredict", "VramcastError", "TraceError", "DifferentRuns", "NotData", "AllocatorConfError",
    "HTTPException", "StepRefused", "DoesNotFit", "ArgumentTypeError", "_failed",
)  # fmt: skip


def _sentences(tree: ast.Module, fewest: int) -> Iterator[str]:
    """Every text of so many words that is no docstring, no HTML, no list of names and not asked for with `say`."""
    left_out = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            left_out.add(node.value)
        if isinstance(node, ast.JoinedStr):
            left_out |= {part for part in node.values if isinstance(part, ast.Constant)}
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in (*ASKING, "name", "named")
        ):
            left_out |= set(ast.walk(node))
    for node in ast.walk(tree):
        if node not in left_out and (text := _text(node)) is not None:
            words = re.findall(r"[A-Za-z]{2,}", re.sub(r"\{\d+\}|--[\w-]+", " ", text))
            if (
                len(words) >= fewest
                and " " in text.strip()
                and not re.search(r"[<=\\\\]|\|\w|\baten\b|_\w+ \w+_", text)
            ):
                yield text.strip()


def _headings(tree: ast.Module) -> Iterator[str]:
    """Single words that stand in a table."""
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
        if name in ("table", "Grid", "add_row", "_table"):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield from re.findall(
                        r"^(?!bold$|jobs$|gpus$|heat$|uses$|user$|name$)[A-Za-z][a-z/]{2,}$", part.value
                    )


def _assigned(tree: ast.Module) -> dict[str, list[ast.expr]]:
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(node.value)
    return found


def _texts(node: ast.expr, assigned: dict[str, list[ast.expr]]) -> Iterator[str]:
    text = _text(node)
    if text is not None:
        yield text
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body, assigned)
        yield from _texts(node.orelse, assigned)
    elif isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from _texts(value, assigned)
    elif isinstance(node, ast.Name) and node.id != "message":
        for value in assigned.get(node.id, ()):  # one that is imported is found where it is defined
            if isinstance(value, ast.Constant | ast.JoinedStr | ast.IfExp):
                yield from _texts(value, {})


def _text(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        places = iter(range(len(node.values)))
        return "".join(
            str(part.value).replace("{", "{{").replace("}", "}}") if isinstance(part, ast.Constant)
            else f"{{{next(places)}}}"
            for part in node.values
        )  # fmt: skip
    return None


_OF_OTHERS = re.compile(
    "CUDA error|CUDAGraph|CUDA graphs must|Capture must|capturing a CUDA graph|CUDA_HOME|Torch not compiled|"
    "CUDA tensor|NVIDIA-SMI|MiB / |"
    "on CUDA$|INTERNAL ASSERT|Error building|Expected all tensors|Cannot re-initialize|Metadata-Version|def rule|"
    "checked in|modelled from|Traceback \\(most recent|cannot import name|invalid index of a 0-dim|view size is not|"
    "arrays can be converted|inhomogeneous shape|expected BoolTensor|binary mode of"
)
"""Words of Python, NumPy, PyTorch and CUDA, which programs look for, code, and what stands in files."""


def _is_of_others(text: str) -> bool:
    return _OF_OTHERS.search(text) is not None and "custom_op" not in text


def _has_words(text: str) -> bool:
    """And is more than a name, a line of a config, a style or a command."""
    if re.fullmatch(r"\w+(\.\w+)+|\w+: [\w{}]+|bold \w+|vramcast predict .*", text):
        return False
    return len(re.findall("[A-Za-z]", re.sub(r"\{\w+\}", " ", text))) > (3 if "{" in text else 1)
