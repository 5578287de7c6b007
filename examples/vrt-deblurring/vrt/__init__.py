"""VRT, the video restoration transformer (Liang et al., 2022), for restoration at the input's own resolution.

Written from the paper. Parameters have the names of the published checkpoints, so that those load.
"""

from vrt.network import VRT

__all__ = ["VRT"]
