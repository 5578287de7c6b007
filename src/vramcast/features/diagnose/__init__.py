"""A log together with the job it is of: what was measured, what is predicted, and what changes would give."""
