"""Decoding engine: standard, speculative and hybrid rows in one continuous batch.

Useful alone::

    loaded = load("demo")
    engine = Engine(loaded.model, loaded.tokenizer, cost=CostModel(load_profile(loaded)))
    mode = Speculative(SuffixDraftSource())
    request = Request(loaded.tokenizer.encode("def add(a, b):"), SamplingParams(seed=7), mode)
    print(loaded.tokenizer.decode(engine.generate(request).output_ids))

Each name is imported when it is used: how torch's threads wait has to be settled before torch is
there (`decoders.waiting`).
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from decoders.calibration import load_profile
    from decoders.cost import CostModel
    from decoders.drafts.model import ModelDraftSource
    from decoders.drafts.suffix import SuffixDraftSource
    from decoders.engine import Engine
    from decoders.loader import load
    from decoders.modes import Hybrid, Speculative, Standard
    from decoders.pairing import load_draft
    from decoders.params import SamplingParams
    from decoders.request import Request

_MODULES = {
    "CostModel": "cost",
    "Engine": "engine",
    "Hybrid": "modes",
    "ModelDraftSource": "drafts.model",
    "Request": "request",
    "SamplingParams": "params",
    "Speculative": "modes",
    "Standard": "modes",
    "SuffixDraftSource": "drafts.suffix",
    "load": "loader",
    "load_draft": "pairing",
    "load_profile": "calibration",
}

__all__ = [
    "CostModel",
    "Engine",
    "Hybrid",
    "ModelDraftSource",
    "Request",
    "SamplingParams",
    "Speculative",
    "Standard",
    "SuffixDraftSource",
    "load",
    "load_draft",
    "load_profile",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
