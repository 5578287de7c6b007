"""From a job to its prediction: it is run on a virtual card, traced, replayed and timed."""
