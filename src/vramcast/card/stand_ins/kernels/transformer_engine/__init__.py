"""TransformerEngine's compiled part, `transformer_engine_torch`: what `transformer_engine/pytorch/csrc` allocates.

The Python part of TransformerEngine installs without a GPU and runs as it is; its functions end here. Read from the
source of version 2.20. Signatures grew from version to version, so arguments that only steer a kernel are found by kind
where that is possible. A function that is not here ends the run with its name.
"""

from vramcast.card.stand_ins.kernels.transformer_engine.attention import (
    fa_prepare_bwd,
    fa_prepare_fwd,
    fused_attn_bwd,
    fused_attn_fwd,
    get_fused_attn_backend,
)
from vramcast.card.stand_ins.kernels.transformer_engine.fused import (
    ACTIVATIONS,
    bgrad_quantize,
    layernorm_bwd,
    layernorm_fwd,
    rmsnorm_bwd,
    rmsnorm_bwd_add,
    rmsnorm_fwd,
)
from vramcast.card.stand_ins.kernels.transformer_engine.gemm import generic_gemm, te_general_grouped_gemm
from vramcast.card.stand_ins.kernels.transformer_engine.names import ENUMERATIONS, DType, FP8BwdTensors, FP8FwdTensors
from vramcast.card.stand_ins.kernels.transformer_engine.pieces import (
    SOFTMAXES,
    dropout_bwd,
    dropout_fwd,
    fused_multi_row_padding,
    fused_multi_row_unpadding,
    fused_qkv_rope_backward,
    fused_qkv_rope_forward,
    fused_rope_backward,
    fused_rope_forward,
    moe_permute_bwd,
    moe_permute_fwd,
    moe_unpermute_bwd,
    moe_unpermute_fwd,
)
from vramcast.card.stand_ins.kernels.transformer_engine.quantizers import (
    compute_amax,
    create_empty_quantized_tensor,
    dequantize,
    fp8_transpose,
    fused_amax_and_scale_update_after_reduction,
    multi_tensor_quantize,
    quantize,
    split_quantize,
    swap_first_dims,
)
from vramcast.card.stand_ins.kernels.transformer_engine.router import (
    fused_moe_aux_loss_bwd,
    fused_moe_aux_loss_fwd,
    fused_moe_aux_loss_fwd_graph_safe,
    fused_score_for_moe_aux_loss_bwd,
    fused_score_for_moe_aux_loss_fwd,
    fused_topk_with_score_function_bwd,
    fused_topk_with_score_function_fwd,
)
from vramcast.card.stand_ins.kernels.transformer_engine.tensor_lists import (
    UPDATES,
    multi_tensor_l2norm,
    multi_tensor_scale,
    multi_tensor_scale_tensor,
    multi_tensor_unscale_l2norm,
)

__all__ = [
    "ACTIVATIONS",
    "ENUMERATIONS",
    "SOFTMAXES",
    "UPDATES",
    "DType",
    "FP8BwdTensors",
    "FP8FwdTensors",
    "bgrad_quantize",
    "compute_amax",
    "create_empty_quantized_tensor",
    "dequantize",
    "dropout_bwd",
    "dropout_fwd",
    "fa_prepare_bwd",
    "fa_prepare_fwd",
    "fp8_transpose",
    "fused_amax_and_scale_update_after_reduction",
    "fused_attn_bwd",
    "fused_attn_fwd",
    "fused_moe_aux_loss_bwd",
    "fused_moe_aux_loss_fwd",
    "fused_moe_aux_loss_fwd_graph_safe",
    "fused_multi_row_padding",
    "fused_multi_row_unpadding",
    "fused_qkv_rope_backward",
    "fused_qkv_rope_forward",
    "fused_rope_backward",
    "fused_rope_forward",
    "fused_score_for_moe_aux_loss_bwd",
    "fused_score_for_moe_aux_loss_fwd",
    "fused_topk_with_score_function_bwd",
    "fused_topk_with_score_function_fwd",
    "generic_gemm",
    "get_fused_attn_backend",
    "layernorm_bwd",
    "layernorm_fwd",
    "moe_permute_bwd",
    "moe_permute_fwd",
    "moe_unpermute_bwd",
    "moe_unpermute_fwd",
    "multi_tensor_l2norm",
    "multi_tensor_quantize",
    "multi_tensor_scale",
    "multi_tensor_scale_tensor",
    "multi_tensor_unscale_l2norm",
    "quantize",
    "rmsnorm_bwd",
    "rmsnorm_bwd_add",
    "rmsnorm_fwd",
    "split_quantize",
    "swap_first_dims",
    "te_general_grouped_gemm",
]
