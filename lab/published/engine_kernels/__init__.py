"""TransformerEngine without its CUDA extension, so that its own Python code runs on a virtual card.

`extension.py` stands for `transformer_engine_torch`: each function allocates what the CUDA function allocates (read from
TransformerEngine's `pytorch/csrc`) and calls the operator of PyTorch that does the same work, so that its time is known.
"""
