"""`vramcast serve`: a page to play with a job's settings, answered from replays where that is possible."""
