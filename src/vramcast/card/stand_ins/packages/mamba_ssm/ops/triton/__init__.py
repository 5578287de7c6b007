"""As in mamba-ssm."""
