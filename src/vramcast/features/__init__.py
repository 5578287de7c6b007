"""What a run does, tried before it is made and while it runs: one folder a verb, its result type beside its work."""
