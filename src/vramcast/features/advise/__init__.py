"""What to change so that a job fits: knobs, a search that needs few traces, and suggestions that have been traced."""
