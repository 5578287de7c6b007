"""Every way to write a checkpoint (the list is in ways.py), in both ways to keep it off the disk."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.overlay.conftest import kernel_way
from tests.overlay.tree_of_files import fingerprint, make_old

SCRIPT = Path(__file__).parent / "ways.py"
OLD = ("ckpt.pt", "last.ckpt", "model.safetensors", "log.csv", "a.npy", "sub/part.pt", "data.bin")
LIBRARIES = (
    "transformers",
    "accelerate",
    "peft",
    "diffusers",
    "safetensors",
    "tensorboard",
    "joblib",
    "h5py",
    "tokenizers",
)


def ways() -> dict[str, str]:
    """Name → the code, read from the script, which cannot be imported without the card."""
    text = SCRIPT.read_text(encoding="utf-8")
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == "_"]
    assert len(functions) >= 40, "the bar"
    return {ast.literal_eval(node.decorator_list[0].args[0]): ast.unparse(node) for node in functions}  # type: ignore[attr-defined]


def without_libraries() -> list[str]:
    others = ("other_programs", *LIBRARIES)
    return [name for name, code in ways().items() if not any(word in code for word in others)]


def prepared(top: Path) -> Path:
    for i in range(len(ways())):
        make_old(top / str(i), OLD)
    return top


@pytest.mark.slow
@pytest.mark.parametrize("way", ["kernel", "python", "python without landlock"])
def test_no_file_is_touched_and_the_script_goes_on(tmp_path: Path, way: str) -> None:
    if way == "kernel" and not kernel_way():
        pytest.skip("no mount namespaces here")
    top = prepared(tmp_path / "a folder of runs")
    before = fingerprint(tmp_path)
    environment = {**os.environ, "VRAMCAST_OVERLAY": way.split()[0], "HOME": str(tmp_path)}
    if way.endswith("landlock"):
        environment["VRAMCAST_OVERLAY_WITHOUT_LANDLOCK"] = "1"
    programs = "programs" if way == "kernel" else "none"
    chosen = without_libraries() if way.endswith("landlock") else []
    command = [sys.executable, "-m", "vramcast", "run", "--gpu", "rtx-4090", str(SCRIPT), str(top), programs, *chosen]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    outcome = next(json.loads(line) for line in done.stderr.splitlines() if line.startswith('{"done"'))
    assert outcome["failed"] == [], done.stderr
    assert len(outcome["done"]) + len(outcome["absent"]) >= (len(chosen) or 40)
    assert all(any(name in line for name in LIBRARIES) for line in outcome["absent"]), outcome["absent"]
    assert fingerprint(tmp_path) == before
    assert "would have written" in done.stdout and "would have deleted" in done.stdout
