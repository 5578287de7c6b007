"""A job as an ordinary training loop on "cuda": what a person would write, so that a script of the same job takes the
same memory. Nothing here knows of the virtual GPU."""
