"""No longer a part of apex."""

raise ImportError(
    "apex.parallel was removed from apex: DistributedDataParallel and SyncBatchNorm of torch.nn do the same"
)
