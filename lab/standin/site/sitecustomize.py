"""Where STANDIN_VALUES is set, a program on the stand-in for CUDA computes small tensors on the host (`values.py`)."""

import os

if os.environ.get("STANDIN_VALUES"):
    from lab.standin.values import compute_small_tensors

    compute_small_tensors()
