"""Changes that make a job fit: knobs, a search that needs few traces, and suggestions that have been traced."""
