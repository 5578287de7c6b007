"""Many questions at once: models × cards × settings, on all cores or on a Ray cluster."""
