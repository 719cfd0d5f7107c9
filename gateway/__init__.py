"""Draftgate: an OpenAI-compatible gateway that chooses, by policy, how each answer is decoded."""

from gateway.app import create_app
from gateway.config import GatewayConfig
from gateway.plugin import GatewayPlugin

__all__ = ["GatewayConfig", "GatewayPlugin", "create_app"]
