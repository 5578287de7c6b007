"""PyTorch's own CUDA code on a machine without a card.

A library that is preloaded stands for the CUDA runtime, its driver, cuBLAS and NCCL; cuDNN itself is asked for the card
that is described to it. PyTorch's dispatcher, kernels' host code, autograd and caching allocator run as they are; only
what a kernel would compute is missing. So it says what is allocated, wherever that does not depend on computed values.

    python -m lab.standin run train.py --epochs 1     # a program on it: what PyTorch counted
    python -m lab.standin operators                   # torch's samples of every operator, beside the virtual card

Where it lies:
- Values that kernels would compute are zeros or what was in the memory before: a program that branches on them, or
  takes sizes from them, goes another way than on a card.
- Nothing takes time: an event is done at once, memory that two streams use comes back at once.
- Libraries that size their workspaces themselves are silent: cuFFT, cuSOLVER, cuSPARSE and cuDNN's recurrent layers.
  Each function of theirs that was called is named in the answer.
"""
