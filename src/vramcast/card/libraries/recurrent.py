"""cuDNN's recurrent networks: the reserve kept for backward, and the workspace of each call.

The reserve is exact: what each layer and direction keeps for every step (gates, cell states), the outputs of all
layers but the last, and one bit for each value that dropout may drop.
The workspace holds the weights, 8 MiB for each layer and direction, and buffers in units of a step's hidden states: the
largest of what the parts of the computation need. Read off 9,000 calls on an H200 with cuDNN 9.19: met to a few KiB
but for deep one-way networks without a persistent kernel, which vary by some per cent (trace/recurrent.py: which
algorithm runs).
"""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.trace.recurrent import GRU, LSTM, RNN_RELU, RNN_TANH, has_small_kernel

_GATES = {RNN_RELU: 1, RNN_TANH: 1, LSTM: 4, GRU: 3}
_KEPT = {RNN_RELU: 1, RNN_TANH: 1, LSTM: 5, GRU: 6}  # values kept for a hidden unit at each step
_FIXED_BYTES = 256
_PER_LAYER_BYTES = 8 << 20
_ALIGNMENT_BYTES = 32
_LONG = 256
"""Steps from which a standard one-way LSTM no longer computes all input gates at once."""


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
    bfloat16: bool = False

    @property
    def output_size(self) -> int:
        return self.projection or self.hidden


@dataclass(frozen=True, slots=True)
class _Buffers:
    """Units of rows x hidden, rows x input, batch x hidden x layers; more rows x hidden with layers, with dropout."""

    rows_hidden: int
    rows_input: int
    states: int
    layers: int = 0
    dropout: int = 0
    short: bool = False
    """Only for sequences that are not long."""


# (gates, directions): packed, else (gates, directions, persistent kernel for small hidden sizes)
_PACKED = {
    (1, 1): _Buffers(2, 0, 1, dropout=1), (3, 1): _Buffers(3, 0, 3, dropout=1), (4, 1): _Buffers(4, 0, 6, dropout=1),
    (1, 2): _Buffers(6, 0, 6), (3, 2): _Buffers(10, 0, 10), (4, 2): _Buffers(12, 0, 16),
}  # fmt: skip
_PADDED = {
    (4, 1, True): (_Buffers(21, 1, 8, dropout=1), _Buffers(15, 3, 12, layers=1)),
    (4, 1, False): (_Buffers(5, 1, 10, dropout=1, short=True), _Buffers(4, 2, 11), _Buffers(3, 3, 11)),
    (4, 2, True): (_Buffers(30, 1, 18), _Buffers(18, 6, 26, layers=2)),
    (4, 2, False): (_Buffers(14, 1, 24), _Buffers(6, 6, 26, layers=2)),
    (3, 1, True): (_Buffers(18, 2, 6, layers=1), _Buffers(17, 3, 6, layers=1)),
    (3, 1, False): (_Buffers(4, 2, 5), _Buffers(3, 3, 5), _Buffers(4, 1, 5, dropout=1)),
    (3, 2, True): (_Buffers(24, 2, 14, layers=2), _Buffers(20, 6, 14, layers=2)),
    (3, 2, False): (_Buffers(12, 1, 14), _Buffers(6, 6, 14, layers=2), _Buffers(10, 2, 14, layers=2)),
    (1, 1, True): (_Buffers(13, 2, 6, layers=1), _Buffers(12, 3, 6, layers=1)),
    (1, 1, False): (_Buffers(4, 2, 5), _Buffers(3, 3, 5)),
    (1, 2, True): (_Buffers(19, 2, 14, layers=2), _Buffers(15, 6, 14, layers=2)),
    (1, 2, False): (_Buffers(10, 2, 14, layers=2), _Buffers(6, 6, 14, layers=2)),
}  # fmt: skip


def reserve_bytes(shape: RecurrentShape) -> int:
    """What a training forward keeps for backward."""
    unit = shape.rows * shape.item_bytes
    cells = shape.layers * shape.directions
    between = (shape.layers - 1) * shape.directions
    kept = unit * shape.hidden * (_KEPT[shape.mode] * cells + between)
    if shape.projection:
        kept += unit * (shape.hidden + shape.projection) * cells
    mask_bits = shape.directions * shape.steps * shape.batch * shape.output_size if shape.dropout else 0
    return _aligned(kept) + between * _aligned(-(-mask_bits // 8)) + _FIXED_BYTES


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def weight_elements(shape: RecurrentShape) -> int:
    """Elements of the weight matrices, without the biases."""
    gates, total = _GATES[shape.mode], 0
    for layer in range(shape.layers):
        inputs = shape.input_size if layer == 0 else shape.directions * shape.output_size
        total += gates * shape.hidden * (inputs + shape.output_size) + shape.projection * shape.hidden
    return total * shape.directions


def workspace_bytes(shape: RecurrentShape, *, backward: bool = False) -> int:
    """Taken for the length of one forward, or of each of the two parts of a backward."""
    gates = _GATES[shape.mode]
    if shape.packed:
        choices: tuple[_Buffers, ...] = (_PACKED[gates, shape.directions],)
    else:
        small = has_small_kernel(shape.mode, shape.hidden, backward=backward)
        small = small and not shape.projection and not shape.bfloat16
        choices = _PADDED[gates, shape.directions, small]
        choices = tuple(b for b in choices if not b.short or shape.steps <= _LONG)
    elements = max(_elements(shape, buffers) for buffers in choices) + weight_elements(shape)
    fixed = _PER_LAYER_BYTES * shape.layers * shape.directions + _FIXED_BYTES
    return elements * shape.item_bytes // _ALIGNMENT_BYTES * _ALIGNMENT_BYTES + fixed


def _elements(shape: RecurrentShape, buffers: _Buffers) -> int:
    rows = buffers.rows_hidden
    if shape.layers > 1:
        rows += buffers.layers + (buffers.dropout if shape.dropout else 0)
    return (
        rows * shape.rows * shape.hidden
        + buffers.rows_input * shape.rows * shape.input_size
        + buffers.states * shape.batch * shape.hidden * shape.layers
    )


def dropout_state_bytes(sm_count: int, threads_per_sm: int) -> int:
    """cudnnDropoutGetStatesSize: one generator of 24 bytes for every thread the card can hold."""
    return 24 * sm_count * threads_per_sm
