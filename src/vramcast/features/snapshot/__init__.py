"""Reads the memory snapshots that torch.cuda.memory._dump_snapshot writes, of any size."""
