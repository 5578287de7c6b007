"""Which algorithm PyTorch asks cuDNN for to run a recurrent network (get_algo in aten/src/ATen/native/cudnn/RNN.cpp).

With a persistent kernel the weights stay in the multiprocessors and one launch goes through all time steps; without,
each step is a product and a few kernels. Packed batches and projections have none, nor does cuDNN for bfloat16.
"""

from __future__ import annotations

RNN_RELU, RNN_TANH, LSTM, GRU = range(4)  # cudnnRNNMode_t
# use_rnn_persist_small_h: forward, backward
_SMALL_HIDDEN = {RNN_RELU: (384, 256), RNN_TANH: (384, 256), LSTM: (192, 128), GRU: (192, 128)}
# use_persist_common_heuristics, and use_persist_device_heuristics as they are from Ampere on; only for float16.
_STATIC_HIDDEN, _STATIC_MULTIPLE = 1024, 128
_STATIC_BATCH, _STATIC_BATCH_MULTIPLE = 128, 8
_WIDE_HIDDEN, _WIDE_BATCH = 896, 96


def has_small_kernel(mode: int, hidden: int, *, backward: bool) -> bool:
    """The persistent kernel for small hidden sizes."""
    return hidden <= _SMALL_HIDDEN[mode][backward]


def has_static_kernel(mode: int, hidden: int, *, input_size: int, layers: int, directions: int, batch: int) -> bool:
    """The persistent kernel for one layer of float16."""
    if layers != 1 or directions != 1 or hidden > _STATIC_HIDDEN:
        return False
    if hidden % _STATIC_MULTIPLE or input_size % _STATIC_MULTIPLE:
        return False
    if mode == GRU or batch > _STATIC_BATCH or batch % _STATIC_BATCH_MULTIPLE:
        return False
    return mode == LSTM or batch < _WIDE_BATCH or hidden < _WIDE_HIDDEN
