"""Where the stand-in for CUDA is kept, and the environment in which a program runs on it."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

from lab.standin.build import build

LOG = "STANDIN_LOG"
"""Names a file that takes the functions which were called and may take memory on a card that is not known here."""


VALUES = "STANDIN_VALUES"
"""Set: small tensors are computed (`values.py`)."""
HERE = Path(__file__).parent


def environment(log: Path | None = None, values: bool = False) -> dict[str, str]:
    """The process's own environment, with the stand-in for the torch that is installed here in front of CUDA."""
    site_packages = Path(sysconfig.get_path("purelib"))
    folder = Path(os.environ.get("VRAMCAST_STANDIN") or Path.home() / ".cache" / "vramcast-standin").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    library = build(site_packages, folder)
    changed = {"LD_PRELOAD": str(library), "TRITON_LIBCUDA_PATH": str(folder)}
    if values:
        path = [str(HERE / "site"), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
        changed |= {VALUES: "1", "PYTHONPATH": os.pathsep.join(filter(None, path))}
    return {**os.environ, **changed, **({LOG: str(log)} if log else {})}
