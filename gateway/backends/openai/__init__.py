"""Other engines as a backend: vLLM, SGLang, llama.cpp, whatever speaks the OpenAI API.

The only package that imports httpx, and only when it is used. It never brings in torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.backends.openai.backend import OpenAIBackend

__all__ = ["OpenAIBackend"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.backend"), name)
