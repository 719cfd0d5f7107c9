"""Decoding engine: standard, speculative and hybrid rows in one continuous batch.

Useful alone::

    loaded = load("demo")
    engine = Engine(loaded.model, loaded.tokenizer, cost=CostModel(load_profile(loaded)))
    mode = Speculative(SuffixDraftSource())
    request = Request(loaded.tokenizer.encode("def add(a, b):"), SamplingParams(seed=7), mode)
    print(loaded.tokenizer.decode(engine.generate(request).output_ids))
"""

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
