"""CUDA autocast for tensors without data.

PyTorch's own autocast kernels cast only tensors that are really on CUDA. These stand in for them at the same place
in the dispatcher (the AutocastCUDA key), so casts happen in the same order, are seen by autograd the same way, and
also inside composite functions. The lists follow aten/src/ATen/autocast_mode.h and autocast_mode.cpp.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch

from vramcast.base.torch_versions import CACHED_CASTS_ARE_TRAINED
from vramcast.card.choices import autocast_rnn
from vramcast.card.choices.traced import is_traced
from vramcast.card.device.installed_torch import INSTALLED
from vramcast.card.dispatch.storages import is_virtual_gpu

KEY = torch._C.DispatchKey.AutocastCUDA
_KEYSET = torch._C.DispatchKeySet(KEY)


def _names(text: str) -> list[str]:
    return text.split()


LOWER_PRECISION = _names("""
_convolution _convolution.deprecated conv1d conv2d conv3d conv1d.padding conv2d.padding conv3d.padding conv_tbc
conv_transpose1d conv_transpose2d.input conv_transpose3d.input convolution cudnn_convolution
cudnn_convolution_transpose prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm
chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell
rnn_relu_cell _scaled_dot_product_flash_attention scaled_dot_product_attention
""")

FLOAT32 = _names("""
acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor
pow.Scalar softplus layer_norm native_layer_norm group_norm rms_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim
cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss
smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss
multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp upsample_nearest1d
_upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d
upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d
_upsample_bicubic2d_aa
""")

# The result is asked for in float32 (through `dtype`); the input itself is not copied.
FLOAT32_RESULT = _names("""
prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
linalg_matrix_norm.str_ord sum sum.dim_IntList
""")

FLOAT32_APPENDED = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}

WIDEST = _names("addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add")


class AutocastKernels:
    """Installs the kernels; one instance per virtual GPU. Holds the cache of weight casts."""

    def __init__(self, on_cached_copy: Callable[[torch.Tensor], None]) -> None:
        self._cache: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}
        self._on_cached_copy = on_cached_copy
        self._library: Any = None
        self._torchvision: Any = None

    def install(self) -> None:
        library: Any = torch._C._dispatch_library("IMPL", "aten", "", "vramcast/autocast.py", 0)
        for names, policy in ((LOWER_PRECISION, self._lower), (FLOAT32, self._float32), (WIDEST, self._widest)):
            for name in names:
                self._register(library, name, policy)
        self._register(library, "_cudnn_rnn", self._half_rnn, always=True)
        for name in FLOAT32_RESULT:
            self._register(library, name, self._float32_result)
        for name, redirected in FLOAT32_APPENDED.items():
            self._register(library, name, self._float32_appended, redirected)
        self._library = library
        self.install_torchvision()
        self.enter_thread()

    def install_torchvision(self) -> None:
        """torchvision's own operators run in fp32 and give back the input's dtype. Again once it has been imported."""
        if self._torchvision is not None or self._library is None:
            return
        if "torchvision" not in sys.modules or not hasattr(torch.ops.torchvision, "roi_align"):
            return
        library: Any = torch._C._dispatch_library("IMPL", "torchvision", "", "vramcast/autocast.py", 0)
        for name in ("roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d"):
            op = getattr(torch.ops.torchvision, name).default

            def kernel(*args: Any, op: Any = op, **kwargs: Any) -> Any:
                with torch._C._ExcludeDispatchKeyGuard(_KEYSET):
                    out = self._float32(op, args, kwargs)
                    dtype = args[0].dtype
                    if isinstance(out, torch.Tensor):
                        return out.to(dtype)
                    return tuple(o.to(dtype) if o.is_floating_point() else o for o in out)

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                library.impl(name, "AutocastCUDA", kernel, False)
        self._torchvision = library

    def enter_thread(self) -> None:
        """Let the kernels see tensors that are not really on CUDA; PyTorch keeps this by thread."""
        torch._C._dispatch_tls_set_dispatch_key_included(KEY, True)

    def leave_thread(self) -> None:
        torch._C._dispatch_tls_set_dispatch_key_included(KEY, False)

    def remove(self) -> None:
        self.leave_thread()
        self.clear()
        for library in (self._library, self._torchvision):
            if library is not None:
                library.reset()
        self._library = self._torchvision = None

    def clear(self) -> None:
        self._cache.clear()

    def _register(
        self, library: Any, name: str, policy: Callable[..., Any], target: str | None = None, always: bool = False
    ) -> None:
        if not always and not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "AutocastCUDA"):
            return  # this version of torch does not autocast the op
        packet, _, overload = (target or name).partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")

        def kernel(*args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(_KEYSET):
                return policy(op, args, kwargs)

        with warnings.catch_warnings():  # torch warns that a kernel is replaced; `remove` puts it back
            warnings.simplefilter("ignore")
            library.impl(name, "AutocastCUDA", kernel, False)

    # The policies. Arguments are casts of virtual CUDA tensors only, as C++ checks `is_cuda`.

    def _lower(self, op: Any, args: Any, kwargs: Any) -> Any:
        return self._call(op, args, kwargs, torch.get_autocast_dtype("cuda"))

    def _float32(self, op: Any, args: Any, kwargs: Any) -> Any:
        return self._call(op, args, kwargs, torch.float32)

    def _call(self, op: Any, args: Any, kwargs: Any, dtype: torch.dtype) -> Any:
        """The C++ wrapper casts in the order its compiler evaluates arguments: last to first."""
        cast = self._cast
        named = {name: cast(dtype, kwargs[name]) for name in reversed(kwargs)} if kwargs else kwargs
        values = [cast(dtype, value) if isinstance(value, _HOLDS_TENSORS) else value for value in reversed(args)]
        return op(*reversed(values), **named)

    def _half_rnn(self, op: Any, args: Any, kwargs: Any) -> Any:
        return autocast_rnn.cudnn_rnn(op, args, kwargs, self._cast)

    def _float32_result(self, op: Any, args: Any, kwargs: Any) -> Any:
        first = args[0]
        if _eligible(first) and first.dtype in (torch.float16, torch.bfloat16):
            position = next(i for i, a in enumerate(op._schema.arguments) if a.name == "dtype")
            given = args[position] if position < len(args) else kwargs.get("dtype")
            if given is None:
                if position < len(args):
                    args = (*args[:position], torch.float32, *args[position + 1 :])
                else:
                    kwargs = {**kwargs, "dtype": torch.float32}
        return op(*args, **kwargs)

    def _float32_appended(self, op: Any, args: Any, kwargs: Any) -> Any:
        dtype = torch.float32 if _eligible(args[0]) else args[0].dtype
        return op(*args, **kwargs, dtype=dtype)

    def _widest(self, op: Any, args: Any, kwargs: Any) -> Any:
        tensors = [a for a in _flat((args, kwargs)) if _eligible(a)]
        dtype = torch.get_autocast_dtype("cuda")
        if any(t.dtype == torch.float32 for t in tensors):
            dtype = torch.float32
        return self._call(op, args, kwargs, dtype)

    def _cast(self, dtype: torch.dtype, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._cast_tensor(dtype, value)
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], torch.Tensor):
            return [self._cast(dtype, item) for item in value]
        return value

    def _cast_tensor(self, dtype: torch.dtype, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype == dtype or tensor.dtype == torch.float64 or not _eligible(tensor):
            return tensor
        # Weight casts are kept until the region ends (cached_cast in autocast_mode.cpp).
        cacheable = (
            tensor.requires_grad
            and tensor.dtype == torch.float32
            and tensor.is_leaf
            and not tensor._is_view()
            and dtype == torch.get_autocast_dtype("cuda")
            and torch.is_autocast_cache_enabled()
            and not (INSTALLED >= CACHED_CASTS_ARE_TRAINED and torch.is_inference_mode_enabled())
        )
        if not cacheable:
            return tensor.to(dtype)
        cached = self._cache.get(id(tensor))
        if cached is not None and cached[0]() is tensor:
            return cached[1]
        with torch.set_grad_enabled(torch.is_grad_enabled() or INSTALLED >= CACHED_CASTS_ARE_TRAINED):
            copy = tensor.to(dtype)
        self._cache[id(tensor)] = (weakref.ref(tensor), copy)
        self._on_cached_copy(copy)
        return copy


_HOLDS_TENSORS = (torch.Tensor, list, tuple)
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_INNER = ("_local_tensor", "elem")
"""Where DTensor and AsyncCollectiveTensor keep the tensor of this rank."""


def _eligible(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return False
    if type(value) in _PLAIN:
        with torch._C.DisableTorchFunction():
            return is_virtual_gpu(value)
    if is_traced(value):  # they stand for those of the card while a function is compiled
        return value.device.type == "cuda"
    for inner in _INNER:
        value = getattr(value, inner, value)
    with torch._C.DisableTorchFunction():  # a backward pass calls from where the program sees "cuda", not what it is
        return is_virtual_gpu(value)


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _flat(item)]
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _flat(item)]
    return [value]
