"""Each example's commands on the virtual card: verdict, figures, and that its README says the same."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from vramcast.base.units import GIB

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NEEDS = {
    "vrt-deblurring": ["torchvision"],
    "diffsr-fno": ["yaml"],
    "vla-vggt-llama": ["transformers", "yaml"],
    "cogvideox-unlearning": ["diffusers", "transformers"],
    "llm-lora": ["peft", "transformers"],
}

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Command:
    """A command that a README shows: `run` of the script, or `predict` of the job file beside it."""

    verb: str
    folder: str
    gpu: str
    arguments: str
    allocated_gib: float | None
    """None where it does not fit and the run ends with the out-of-memory error."""
    reserved_gib: float | None

    def __str__(self) -> str:
        return f"{self.verb} {self.folder} {self.gpu} {self.arguments}".strip()


COMMANDS = [
    Command("run", "vrt-deblurring", "rtx-4090", "", None, None),
    # Measured on an H200: 38.95 GiB allocated, 47.38 GiB reserved.
    Command("run", "vrt-deblurring", "h200", "", 38.95, 47.38),
    # One rank of three, so with gradient buckets.
    Command("predict", "vrt-deblurring", "h200", "", 38.99, 42.39),
    # Measured on an H200 without the interpolation before it: 12.58 GiB and 13.47 GiB.
    Command("run", "diffsr-fno", "rtx-4090", "", 12.53, 13.43),
    Command("predict", "diffsr-fno", "rtx-4090", "", 12.53, 13.43),
    Command("run", "vla-vggt-llama", "rtx-6000-ada", "", 20.63, 20.98),
    Command("run", "vla-vggt-llama", "h200", "--train llm", 66.06, 68.49),
    Command(
        "predict", "vla-vggt-llama", "h200",
        "--set components.language.mode=trained --set components.vision.mode=trained", 79.61, 80.02,
    ),
    Command("run", "cogvideox-unlearning", "a100-80gb", "", 71.57, 74.83),
    # One prompt is encoded instead of two, and the latents are given.
    Command("predict", "cogvideox-unlearning", "a100-80gb", "", 71.60, 73.71),
    Command("run", "llm-lora", "rtx-4090", "", 15.54, 17.20),
    Command("predict", "llm-lora", "rtx-4090", "", 15.54, 17.20),
]  # fmt: skip


def result_of(command: Command) -> dict[str, Any]:
    target = f"examples/{command.folder}" + ("/train.py" if command.verb == "run" else "")
    line = [sys.executable, "-m", "vramcast.cli.main", command.verb, "--json", "--gpu", command.gpu, target]
    line += ["--allow-code"] if command.verb == "predict" else []
    done = subprocess.run(
        [*line, *command.arguments.split()],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode in (0, 1), done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    result = result.get("prediction", result)
    assert done.returncode == (0 if result["fits"] else 1)
    return result


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> Iterator[dict[Command, Future[dict[str, Any]]]]:
    """The commands of the selected tests, two at a time."""
    selected = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    commands = [params["command"] for params in selected if isinstance(params.get("command"), Command)]
    with ThreadPoolExecutor(max_workers=2) as pool:
        yield {command: pool.submit(result_of, command) for command in commands if not missing(command)}


def missing(command: Command) -> list[str]:
    return [library for library in NEEDS[command.folder] if importlib.util.find_spec(library) is None]


def shown_in_readme(verdict: str, folder: str) -> bool:
    """The words are the same, and each figure is within 2 % or 0.2 GiB."""
    readme = " ".join((EXAMPLES / folder / "README.md").read_text(encoding="utf-8").split())
    figure = r"(\d+\.\d+)"
    pattern = figure.join(re.escape(words) for words in re.split(r"\d+\.\d+", verdict))
    now = [float(number) for number in re.findall(figure, verdict)]
    return any(
        [float(number) for number in shown.groups()] == pytest.approx(now, rel=0.02, abs=0.2)
        for shown in re.finditer(pattern, readme)
    )


def _once(command: Command) -> Any:
    """What takes long: a job file of what is also run as a script, and a script with other settings."""
    is_twice = command.verb == "predict" and command.folder not in ("diffsr-fno", "llm-lora")
    is_twice |= command == COMMANDS[0] or command.arguments == "--train llm"
    return pytest.param(command, marks=pytest.mark.exhaustive if is_twice else (), id=str(command))


@pytest.mark.parametrize("command", [_once(command) for command in COMMANDS])
def test_command(command: Command, results: dict[Command, Future[dict[str, Any]]]) -> None:
    if missing(command):
        pytest.skip(f"needs {', '.join(missing(command))}")
    result = results[command].result()
    assert result["fits"] is (command.allocated_gib is not None)
    if command.allocated_gib is None:
        assert not result["at_least"] and result["device_bytes"] > result["limit_bytes"], "the whole need is known"
    else:
        assert result["peak_allocated_bytes"] / GIB == pytest.approx(command.allocated_gib, rel=0.005)
        assert result["peak_reserved_bytes"] / GIB == pytest.approx(command.reserved_gib, rel=0.02)
    assert shown_in_readme(result["verdict"], command.folder), "the README shows another verdict"


def test_every_example_has_a_command_here_and_is_listed() -> None:
    folders = {path.name for path in EXAMPLES.iterdir() if (path / "train.py").is_file()}
    assert folders == set(NEEDS) == {command.folder for command in COMMANDS}
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert all(f"({folder}/)" in listed for folder in folders)
