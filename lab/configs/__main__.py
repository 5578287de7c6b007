"""Read real configs of other tools and print what became of each: `python -m lab.configs [TOOL]`.

VRAMCAST_ZOO_MIRROR names a folder of mirrors (owner+name); without one the commits are fetched from GitHub.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lab.zoo.manifest import Repository
from lab.zoo.workplace import git_folder
from vramcast.errors import VramcastError
from vramcast.jobs.load import LoadedJob, load_job
from vramcast.jobs.readers import Request

MANIFEST = Path(__file__).with_name("manifest.toml")
MODEL = Path(__file__).parents[2] / "tests" / "jobs" / "configs" / "llama-tiny"
_SCRIPTS = r"(?:sft|dpo|grpo|train_text_to_image\w*|train_dreambooth\w*|\w*train_network|sdxl_train|train_db|fine_tune)"
_COMMAND = re.compile(rf"^\s*(?:trl (?:sft|dpo|grpo)|(?:python|accelerate launch)\b.*\b{_SCRIPTS}\.py)\b")


_FLAG = re.compile(r"^\s+--\w")
_EXPORT = re.compile(r"^\s*export (\w+)=[\"']?([^\"'\s]*)")
"""Some pages go on in the next line without a backslash."""


def main(names: list[str]) -> int:
    tools = tomllib.loads(MANIFEST.read_text(encoding="utf-8"))["tool"]
    bad = 0
    for tool in tools:
        if not names or tool["name"] in names:
            rows = list(_rows(tool))
            good = sum(not problem for _, _, problem in rows)
            print(f"\n{tool['name']}: {good} of {len(rows)} read ({tool['repository']} at {tool['commit'][:12]})")
            for name, said, problem in rows:
                print(f"  {name}\n    {problem or said}")
            bad += len(rows) - good
    return 1 if bad else 0


def _rows(tool: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """What was read, what of, and why not."""
    git = git_folder(Repository(name=tool["repository"], commit=tool["commit"]))
    model = None if tool.get("own_sizes") else str(MODEL)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name in (*tool.get("also", ()), *tool.get("files", ())):
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_bytes(_content(git, tool["commit"], name))
        for name, text in tool.get("written", {}).items():
            Path(name).write_text(text, encoding="utf-8")
        for name in tool.get("files", ()):
            yield name, *_try(lambda name=name: load_job(name, request=Request(model=model)))
        for name in tool.get("commands_in", ()):
            for line, words in _commands(_content(git, tool["commit"], name).decode()):
                request = Request(model=model, arguments=tuple(words))
                yield f"{name}:{line}", *_try(lambda request=request: load_job(None, request=request))


def _content(git: Path, commit: str, name: str) -> bytes:
    shown = ["git", "--git-dir", str(git), "show", f"{commit}:{name}"]
    return subprocess.run(shown, check=True, capture_output=True).stdout


def _commands(text: str) -> Iterator[tuple[int, list[str]]]:
    """Commands in code blocks, with the lines that they go on in. One with a config file of its own is left out."""
    lines = text.splitlines()
    for i, line in enumerate(lines):
        if _COMMAND.match(line):
            end = i
            while end + 1 < len(lines) and (lines[end].rstrip().endswith("\\") or _FLAG.match(lines[end + 1])):
                end += 1
            text = " ".join(one.rstrip().removesuffix("\\") for one in lines[i : end + 1])
            exported = {match[1]: match[2] for line in lines[:i] if (match := _EXPORT.match(line))}
            try:
                words = shlex.split(_expanded(text, exported))
            except ValueError:  # a page's own quotation marks
                continue
            if not any(word.startswith("--config") for word in words) and len(words) > 4:
                yield i + 1, words


def _expanded(text: str, variables: dict[str, str]) -> str:
    return re.sub(r"\$(\w+)", lambda name: variables.get(name[1], name[0]), text)


def _try(load: Any) -> tuple[str, str]:
    try:
        return _in_words(load()), ""
    except VramcastError as error:
        return "", f"{type(error).__name__}: {error}"


def _in_words(loaded: LoadedJob) -> str:
    job = loaded.job
    if job.step is not None:
        step = {key: value for key, value in job.step.arguments.items() if key != "settings"}
        sizes = ", ".join(f"{name} {size}" for name, size in job.sizes.items())
        return f"{loaded.recognised_as}, {sizes}, {step}, {len(loaded.notes)} notes"
    name = [name for name, one in job.components.items() if one.is_trained][-1]
    model = job.components[name]
    adapters = f"LoRA {model.lora.rank}" if model.lora else model.mode
    said = [
        loaded.recognised_as.rpartition(" + ")[2], f"batch {job.effective_sizes['batch']} × {job.accumulation}",
        ", ".join(f"{name} {size}" for name, size in job.sizes.items() if name != "batch"), adapters,
        model.quantization,
        f"{job.precision.weights_dtype} weights, autocast {job.precision.autocast_dtype}", job.optimizer[0].name,
        f"checkpointing {job.checkpointing.scope}", f"{len(loaded.notes)} notes",
    ]  # fmt: skip
    if "reference" in job.components:
        said.insert(4, "reference")
    return ", ".join(said)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
