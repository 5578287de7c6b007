"""The published recipes, rebuilt from their description: `run(row)` trains as that row's run did.

Each returns the number of parameters of the model it built, so that a row whose stated count differs can be dropped.
"""
