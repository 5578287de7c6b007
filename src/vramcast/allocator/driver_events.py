"""What the driver takes for itself while a run goes on, beside its segments. The names are marks in a trace.

Read off recordings of an H200 (driver 580), as gaps between segments that are otherwise placed without any.
"""

_MIB = 1 << 20

FIRST_KERNEL = "first kernel"
"""The first kernel that makes no random numbers: the context rearranges itself (see AddressSpace)."""
RANDOM_NUMBERS = "random numbers"
"""Random numbers before any other kernel."""
NORM = "first norm"
"""The reduction of PyTorch whose kernels are loaded in such an amount; those of sums and means are not."""
CUBLAS_HANDLE = "cuBLAS handle"
CUDNN_HANDLE = "cuDNN handle"

TAKEN_BYTES = {
    RANDOM_NUMBERS: 2 * _MIB,
    NORM: 10 * _MIB,
    CUBLAS_HANDLE: 64 * _MIB,
    CUDNN_HANDLE: 10 * _MIB,
}
DRIVER_EVENTS = frozenset({FIRST_KERNEL, *TAKEN_BYTES})
