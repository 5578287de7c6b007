"""As in flash-attn."""
