"""Names of operators that run nothing on the device, and of those that work on each element."""

from __future__ import annotations

_HOST_ONLY = """
    view _unsafe_view reshape _reshape_alias t transpose permute expand expand_as slice select unsqueeze squeeze split
    split_with_sizes unbind alias detach detach_ as_strided as_strided_ unfold diagonal view_as_real view_as_complex
    _conj _neg_view empty empty_like new_empty empty_strided new_empty_strided _indices _values indices values
    is_coalesced _coalesced_ lift_fresh lift is_pinned chunk narrow movedim set_ resize_ t_ transpose_ squeeze_
    unsqueeze_ _sparse_coo_tensor_with_dims_and_tensors _sparse_coo_tensor_with_dims _nnz sparse_dim dense_dim
    _record_function_enter_new _record_function_exit is_same_size sym_size sym_stride sym_numel sym_storage_offset dim
    numel size stride is_contiguous _has_compatible_shallow_copy_type _version requires_grad_ swapaxes real imag
    _assert_tensor_metadata _assert_scalar record_stream isalias _use_cudnn_ctc_loss _use_miopen_ctc_loss
"""
_POINTWISE = """
    add sub mul div rsub neg abs sign sgn pow exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal square sin cos
    tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh erf erfc erfinv floor ceil round trunc frac fmod
    remainder floor_divide clamp clamp_min clamp_max clip maximum minimum fmax fmin where masked_fill lerp addcmul
    addcdiv relu gelu silu mish sigmoid hardsigmoid hardswish hardtanh leaky_relu elu celu selu softplus threshold glu
    prelu _prelu_kernel log_sigmoid_forward logit heaviside hypot copysign nan_to_num nextafter sigmoid_backward
    tanh_backward gelu_backward silu_backward mish_backward hardsigmoid_backward hardswish_backward hardtanh_backward
    leaky_relu_backward elu_backward softplus_backward threshold_backward glu_backward log_sigmoid_backward
    native_dropout_backward _prelu_kernel_backward logit_backward eq ne lt le gt ge isnan isinf isfinite logical_and
    logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_xor bitwise_not __and__ __or__ __xor__
    __lshift__ __rshift__ bitwise_left_shift bitwise_right_shift
    binary_cross_entropy binary_cross_entropy_backward
    l1_loss masked_scatter tril triu flip polar complex xlogy conj_physical angle
    _amp_update_scale lgamma digamma
"""
HOST_ONLY = frozenset(_HOST_ONLY.split())
POINTWISE = frozenset(_POINTWISE.split())
POINTWISE |= {f"{name}_" for name in POINTWISE}
