"""CUDA extensions that Megatron-LM uses, for a virtual card: their Python code runs, their kernels only allocate.

`apex.py` stands for Apex, `flash.py` for flash-attn: each function allocates what the CUDA function allocates (read
from the source) and calls the operator of PyTorch that does the same work, so that its time is known.
TransformerEngine's compiled part is stood in for by vramcast itself; its Python part runs from a checkout
(`install.py`).
"""
