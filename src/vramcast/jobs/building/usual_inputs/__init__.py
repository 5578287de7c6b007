"""The inputs that a model of a known kind is usually trained with, when the job does not say them.

One file for each family: each has a table of functions from a model's configuration to `Usual`. A new kind of model
is a new function there.
"""

from vramcast.jobs.building.usual_inputs.find import usual_inputs
from vramcast.jobs.building.usual_inputs.usual import Usual

__all__ = ["Usual", "usual_inputs"]
