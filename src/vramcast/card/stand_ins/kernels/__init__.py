"""What the kernels of packages allocate; the modules in `packages` give them their names."""
