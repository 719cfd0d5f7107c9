"""The dashboard: pages for people over the JSON API, as files that a browser runs.

It knows the API by its routes alone and reads nothing else; whoever has no key sees no figure.
The files lie in ``static`` as they are sent: no build step, nothing from elsewhere.
"""

from gateway.dashboard.routes import build_dashboard

__all__ = ["build_dashboard"]
