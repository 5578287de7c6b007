"""Names in the log of ops for kernels that Inductor made of several operators."""

FUSED = "fused_"
"""Begins the name of such a kernel; Inductor's name for its kind follows (pointwise, reduction, ...). The namespace is
`triton`."""
