"""The same job on a real GPU: what it allocated, what it reserved, how long it took."""
