"""The gateway's own engine as a backend.

The only package that imports `decoders`, and so the only one that brings in torch.
"""

from gateway.backends.local.backend import LocalBackend
from gateway.backends.local.loading import fetch

__all__ = ["LocalBackend", "fetch"]
