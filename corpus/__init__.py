"""Training workloads that are measured on real GPUs and predicted without one."""
