"""NumPy is no requirement of torch's, nor of vramcast's: parts of torch that import it are not needed."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import sys, warnings
sys.modules["numpy"] = None  # importing it fails
warnings.simplefilter("ignore")
import torch
import vramcast
with vramcast.virtual_gpu("rtx-4090"):
    torch.nn.Linear(8, 8, device="cuda")(torch.ones(4, 8, device="cuda")).sum().backward()
print("done")
"""


def test_the_card_without_numpy() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=False)
    assert done.stdout == "done\n", done.stderr
