"""torch.compile on the virtual card.

Dynamo, AOTAutograd and Inductor run as they would for the named card, and see nothing of the modes that make the card
(`visibility`); the tensors they trace with say "cuda" to Python and "meta" to C++ (`fake_cuda`), so that no CUDA
runtime is asked. What a benchmark or a property of the card decides is answered in `inductor`. The wrapper code that
Inductor writes then runs on the card like any program: its buffers are booked, its own kernels do nothing (`kernels`),
and its calls of cuBLAS, cuDNN and attention are the ops of eager code.
"""

from vramcast.card.compiled.compiler import Compiler

__all__ = ["Compiler"]
