"""cuDNN's recurrent networks: the reserve kept for backward, and the workspace of each call.

The reserve is exact: what each layer and direction keeps for every step (gates, cell states), the outputs of all
layers but the last, and one bit for each value that dropout may drop.
The workspace holds the weights, 8 MiB for each layer and direction, and buffers in units of a step's hidden states.
Its coefficients are fitted on an H200 with cuDNN 9.19 (178 cases; exact for packed sequences, else within 1 % for
nine of ten); which algorithm runs follows get_algo in aten/src/ATen/native/cudnn/RNN.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass

RNN_RELU, RNN_TANH, LSTM, GRU = range(4)  # cudnnRNNMode_t
_GATES = {RNN_RELU: 1, RNN_TANH: 1, LSTM: 4, GRU: 3}
_KEPT = {RNN_RELU: 1, RNN_TANH: 1, LSTM: 5, GRU: 6}  # values kept for a hidden unit at each step
_FIXED_BYTES = 256
_PER_LAYER_BYTES = 8 << 20
_ALIGNMENT_BYTES = 32
_SMALL_HIDDEN = {RNN_RELU: 384, RNN_TANH: 384, LSTM: 192, GRU: 192}  # use_rnn_persist_small_h, forward


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentShape:
    """One call. `rows` is steps x batch, or the sum of the lengths of a packed batch."""

    mode: int
    steps: int
    batch: int
    rows: int
    input_size: int
    hidden: int
    projection: int
    layers: int
    directions: int
    dropout: bool
    packed: bool
    item_bytes: int

    @property
    def output_size(self) -> int:
        return self.projection or self.hidden


@dataclass(frozen=True, slots=True)
class _Buffers:
    """Units: of rows x hidden, rows x input, batch x hidden x layers; more rows x hidden with dropout, with layers."""

    rows_hidden: float
    rows_input: float
    states: float
    dropout: float
    layers: float


# (gates, directions): packed, else (gates, directions, persistent kernel for small hidden sizes)
_PACKED = {
    (1, 1): _Buffers(2, 0, 1, 1, 0), (3, 1): _Buffers(3, 0, 3, 1, 0), (4, 1): _Buffers(4, 0, 6, 1, 0),
    (1, 2): _Buffers(6, 0, 6, 0, 0), (3, 2): _Buffers(10, 0, 10, 0, 0), (4, 2): _Buffers(12, 0, 16, 0, 0),
}  # fmt: skip
_PADDED = {
    (4, 1, False): _Buffers(5, 1, 10.8, 0.67, 0), (4, 1, True): _Buffers(21, 1, 8, 1, 0),
    (4, 2, False): _Buffers(14, 1, 24, 0, 0), (4, 2, True): _Buffers(27.7, 4, 12, 0, 0),
    (3, 1, False): _Buffers(4, 2, 4.8, 0, 0), (3, 1, True): _Buffers(17, 3, 6, 0.6, 1),
    (3, 2, False): _Buffers(11.1, 1.9, 16.4, 0, 0.8), (3, 2, True): _Buffers(25.4, 4.2, 1, 0, 0),
    (1, 1, False): _Buffers(4.1, 1, 8.2, 0, 0), (1, 1, True): _Buffers(3.9, 3, 6, 10, 0),
    (1, 2, False): _Buffers(10, 2, 14, 0, 2), (1, 2, True): _Buffers(20.4, 3.3, 11.7, 8, 0),
}  # fmt: skip


def reserve_bytes(shape: RecurrentShape) -> int:
    """What a training forward keeps for backward."""
    unit = shape.rows * shape.item_bytes
    cells = shape.layers * shape.directions
    between = (shape.layers - 1) * shape.directions
    kept = unit * shape.hidden * (_KEPT[shape.mode] * cells + between)
    if shape.projection:
        kept += unit * (shape.hidden + shape.projection) * cells
    masks = between * shape.directions * shape.steps * shape.batch * shape.output_size if shape.dropout else 0
    return _aligned(kept) + _aligned(-(-masks // 8)) + _FIXED_BYTES


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def weight_elements(shape: RecurrentShape) -> int:
    """Of the weight matrices, biases left out."""
    gates, total = _GATES[shape.mode], 0
    for layer in range(shape.layers):
        inputs = shape.input_size if layer == 0 else shape.directions * shape.output_size
        total += gates * shape.hidden * (inputs + shape.output_size) + shape.projection * shape.hidden
    return total * shape.directions


def workspace_bytes(shape: RecurrentShape) -> int:
    """Taken for the length of one forward, and of each of the two parts of a backward."""
    gates = _GATES[shape.mode]
    small = not shape.packed and not shape.projection and shape.hidden <= _SMALL_HIDDEN[shape.mode]
    if shape.packed:
        buffers = _PACKED[gates, shape.directions]
    else:
        buffers = _PADDED[gates, shape.directions, small]
    rows = buffers.rows_hidden
    rows += buffers.dropout if shape.dropout and shape.layers > 1 else 0
    rows += buffers.layers if shape.layers > 1 else 0
    elements = (
        rows * shape.rows * shape.hidden
        + buffers.rows_input * shape.rows * shape.input_size
        + buffers.states * shape.batch * shape.hidden * shape.layers
        + weight_elements(shape)
    )
    fixed = _PER_LAYER_BYTES * shape.layers * shape.directions + _FIXED_BYTES
    return int(elements * shape.item_bytes) // _ALIGNMENT_BYTES * _ALIGNMENT_BYTES + fixed


def dropout_state_bytes(sm_count: int, threads_per_sm: int) -> int:
    """cudnnDropoutGetStatesSize: one generator of 24 bytes for every thread the card can hold."""
    return 24 * sm_count * threads_per_sm
