"""Pages and summaries that are written from the comparisons."""
