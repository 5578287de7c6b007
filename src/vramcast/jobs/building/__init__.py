"""One file for each place that a component can come from; each builds the module and knows its usual inputs."""
