"""CUDA extensions that Megatron-LM uses, for a virtual card: their Python code runs, their kernels only allocate.

`extension.py` stands for TransformerEngine's `transformer_engine_torch`, `apex.py` for Apex, `flash.py` for flash-attn.
Each function allocates what the CUDA function allocates (read from the source) and calls the operator of PyTorch that
does the same work, so that its time is known.
"""
