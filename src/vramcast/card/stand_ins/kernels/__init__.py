"""What the kernels of packages allocate, as functions and operators; the modules in `packages` give them their names."""
