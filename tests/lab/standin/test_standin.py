"""What PyTorch's own CUDA code allocates, on a stand-in for the card, beside what is predicted."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[3]
BUILDS = shutil.which("g++") and shutil.which("nm") and importlib.util.find_spec("nvidia")
pytestmark = pytest.mark.skipif(
    not BUILDS or torch.version.cuda is None, reason="needs g++, nm, and a torch for CUDA with its headers"
)

TRANSFORMER = """
import torch
torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 2).cuda()
head = torch.nn.Embedding(1000, 256, device="cuda")
optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()])
for step in range(3):
    tokens = torch.randint(0, 1000, (8, 128), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(head(tokens)) @ head.weight.t()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the stand-in is compiled, once."""
    return tmp_path_factory.mktemp("standin")


def standin(folder: Path, *arguments: str) -> str:
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    environment = {**os.environ, "PYTHONPATH": path, "VRAMCAST_STANDIN": str(folder), "VRAMCAST_CHECK": "0"}
    command = [sys.executable, "-m", "lab.standin", *arguments]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
    return done.stdout


def test_a_training_run_is_predicted_to_the_byte(folder: Path) -> None:
    script = folder / "train.py"
    script.write_text(TRANSFORMER)
    counted = standin(folder, "run", "--bare", str(script)).split()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "vramcast", "run", "--gpu", "h200", "--whole", "--json", str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    predicted = json.loads(done.stdout[done.stdout.index("{") :])
    assert [predicted["peak_allocated_bytes"], predicted["peak_reserved_bytes"]] == [int(word) for word in counted]


def test_small_tensors_have_their_values(folder: Path) -> None:
    script = folder / "values.py"
    script.write_text(
        "import torch\n"
        "mask = torch.arange(10, device='cuda').remainder(3) == 0\n"
        "print(mask.sum().item(), mask.all().item(), torch.ones(4, device='cuda').cumsum(0).tolist())\n"
    )
    assert standin(folder, "run", str(script)) == "4 False [1.0, 2.0, 3.0, 4.0]\n"


def test_operators_take_what_they_take_in_pytorchs_own_code(folder: Path) -> None:
    names = ["nn.functional.gelu", "index_add", "addcmul", "nn.functional.adaptive_max_pool2d"]
    last = standin(folder, "operators", "--samples", "2", "--only", *names).splitlines()[-1]
    assert ", 0 of 0 operators do not" in last and not last.startswith("0 ")
