"""As in causal-conv1d."""

from vramcast.card.stand_ins.kernels.causal_convolution import (
    backward as causal_conv1d_bwd_function,
)
from vramcast.card.stand_ins.kernels.causal_convolution import (
    causal_conv1d_update as causal_conv1d_update_function,
)
from vramcast.card.stand_ins.kernels.causal_convolution import (
    forward as causal_conv1d_fwd_function,
)

__all__ = ["causal_conv1d_bwd_function", "causal_conv1d_fwd_function", "causal_conv1d_update_function"]
