"""Tensors that another stream uses (`Tensor.record_stream`), as a mark in a trace.

The allocator takes such memory back only when that stream has done what it had been given by the time of the free.
"""

USED_ELSEWHERE = "freed while another stream may use it"
"""The mark: the free that comes next waits."""
