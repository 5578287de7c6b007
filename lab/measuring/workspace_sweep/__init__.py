"""Measures the memory that CUDA library calls allocate inside PyTorch operators (run on a GPU)."""
