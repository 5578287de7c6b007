"""PyTorch's own CUDA code on a machine without a card (lab/standin/__init__.py).

    python -m lab.standin run [--bare] ARGUMENTS...            Python on it: `train.py`, `-m lab.zoo measure NAME`
    python -m lab.standin compare [--bare] [--steps N] TRAIN   what PyTorch counts there beside `vramcast run`
    python -m lab.standin operators                            torch's samples of operators, beside the virtual card

--bare: small tensors are not computed. Compiled code needs that: a dispatch mode would keep it from being compiled.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.standin import operators
from lab.standin.card import environment

_PEAKS = ("peak_allocated_bytes", "peak_reserved_bytes")


def main(arguments: list[str]) -> int:
    verb, *rest = arguments or [""]
    if verb == "operators":
        return operators.main(rest)
    if verb in ("run", "compare") and rest:
        bare = rest[0] == "--bare"
        return (_run if verb == "run" else _compare)(rest[bare:], not bare)
    print(__doc__, file=sys.stderr)
    return 2


def _run(command: list[str], values: bool) -> int:
    """Python with these arguments; functions whose memory is not known are named at the end."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "called"
        code = subprocess.run([sys.executable, *command], env=environment(log, values)).returncode
        for name in sorted(set(log.read_text().splitlines())) if log.exists() else []:
            print(f"standin: {name} was called; what it takes on a card is not known", file=sys.stderr)
    return code


def _compare(command: list[str], values: bool) -> int:
    steps = ["--steps", command[1]] if command[0] == "--steps" else ["--steps", "3"]
    program = command[2:] if command[0] == "--steps" else command
    counted = _answer(["measure", *steps, "--json", *program], environment(None, values))["run"]
    predicted = _answer(["run", "--gpu", "h200", *steps, "--json", *program], os.environ)
    made = predicted["account"]["steps"][: len(counted["steps"])]
    for name in _PEAKS:
        mine = max((step[name] for step in made), default=0)
        print(f"{name}: {counted[name]} counted by PyTorch, {mine} predicted ({mine / counted[name] - 1:+.3%})")
    return 0


def _answer(arguments: list[str], environment: Mapping[str, str]) -> Any:
    done = subprocess.run([sys.executable, "-m", "vramcast", *arguments], env=environment, stdout=subprocess.PIPE)
    if not done.stdout.startswith(b"{"):
        sys.exit(f"standin: `vramcast {arguments[0]}` ended with {done.returncode} and no answer")
    return json.loads(done.stdout)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
