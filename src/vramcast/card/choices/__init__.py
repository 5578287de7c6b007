"""What CUDA code chooses by card, version and shape: which attention, which norm, autocast, workspaces."""
