"""Exact laws of answers: a target of three tokens, what it should emit, and what the engine does emit.

The reference shares no code with the engine. Everything is enumerated; nothing is sampled.
"""

import math

import pytest
import torch

from decoders.draft import Dense, Draft
from decoders.engine import Engine
from decoders.noise import Greedy
from decoders.params import SamplingParams
from decoders.request import Request
from decoders.sampling import TokenCounts, process
from decoders.testing import CharacterTokenizer, TableModel, enumerate_law
from decoders.verifiers.base import DraftedRow
from decoders.verifiers.coupled import CoupledVerifier

TEXT = "ab."
EOS = 2
VOCAB = 3
PROMPT = (0, 1, 0)
TOLERANCE = 1e-12

# (a, b, end) by the last two tokens: plain, sharp, tied, and with impossible tokens.
ROWS = {
    (0, 0): (0.5, 0.3, 0.2),
    (0, 1): (0.6, 0.4, 0.0),
    (1, 0): (0.25, 0.5, 0.25),
    (1, 1): (0.0, 1.0, 0.0),
}


def target(prefix):
    return ROWS[prefix[-2] % 2, prefix[-1] % 2]


PROCESSORS = {
    "plain": {},
    "temperature": {"temperature": 0.5},
    "hot": {"temperature": 3.0},
    "top_k": {"top_k": 2},
    "top_k_one": {"top_k": 1},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.55},
    "bias": {"logit_bias": {0: 1.0, 2: -0.5}},
    "ban": {"logit_bias": {1: -math.inf}},
    "penalties": {"frequency_penalty": 0.7, "presence_penalty": 0.4},
    "repetition": {"repetition_penalty": 1.5},
    "greedy": {"temperature": 0.0},
    "all": {
        "temperature": 0.8,
        "top_k": 2,
        "top_p": 0.9,
        "min_p": 0.05,
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.2,
        "logit_bias": {2: 0.3},
    },
}

DRAFT_LAWS = {
    "equal": target,
    "near": lambda prefix: (0.6, 0.3, 0.1) if prefix[-1] else (0.2, 0.5, 0.3),
    "flat": lambda prefix: (1 / 3, 1 / 3, 1 / 3),
    # No mass on a token that the target emits, all of it on one that the target may never emit.
    "blind": lambda prefix: (0.0, 0.7, 0.3),
    "sure": lambda prefix: (0.0, 0.0, 1.0),
    "narrow": lambda prefix: (0.3, 0.7),
    "padded": lambda prefix: (0.3, 0.2, 0.1, 0.3, 0.1),
}
"""By the tokens before; as many columns as the draft model's vocabulary has."""


def oracle(tokens, count):
    """Drafts that are often right: the target's most likely continuation."""
    tokens = list(tokens)
    for _ in range(count):
        row = target(tokens)
        tokens.append(row.index(max(row)))
    return tokens[-count:]


def anything(output):
    return range(VOCAB)


def processed(params, output, rule=anything):
    """Bias, repetition, frequency and presence, rule, temperature, min-p, top-k, top-p, in plain floats.

    ``rule`` says which tokens may follow an output.
    """
    raw = target(PROMPT + output)
    logits = [math.log(m) if m > 0 else -math.inf for m in raw]
    logits = [z + params.logit_bias.get(t, 0.0) for t, z in enumerate(logits)]
    for t in range(VOCAB):
        count = output.count(t)
        if count or t in PROMPT:
            r = params.repetition_penalty
            logits[t] = logits[t] / r if logits[t] > 0 else logits[t] * r
        logits[t] -= params.frequency_penalty * count + params.presence_penalty * (count > 0)
        if t not in rule(output):
            logits[t] = -math.inf
    if params.temperature == 0:
        best = logits.index(max(logits))
        return [float(t == best) for t in range(VOCAB)]
    weights = [math.exp((z - max(logits)) / params.temperature) for z in logits]
    weights = [w if w >= params.min_p * max(weights) else 0.0 for w in weights]
    if params.top_k:
        floor = sorted(weights, reverse=True)[params.top_k - 1]
        weights = [w if w >= floor else 0.0 for w in weights]
    total, mass = sum(weights), 0.0
    for w in sorted(weights, reverse=True):
        mass += w / total
        if mass >= params.top_p:
            weights = [v if v >= w else 0.0 for v in weights]
            break
    return [w / sum(weights) for w in weights]


def reference(params, stop=(), max_tokens=4, rule=anything):
    """The law of complete answers: a tree walk over the target's processed laws."""
    law = {}
    ends = {*params.stop_token_ids} | (set() if params.ignore_eos else {EOS})

    def walk(output, weight):
        text = "".join(TEXT[t] for t in output if t != EOS)
        ended = output and (
            output[-1] in ends or any(s in text for s in stop) or len(output) == max_tokens
        )
        if ended:
            law[output] = law.get(output, 0.0) + weight
            return
        for token, mass in enumerate(processed(params, output, rule)):
            if mass > 0:
                walk((*output, token), weight * mass)

    walk((), 1.0)
    return law


def answer(
    params, mode, noise, *, verifier=None, stop=(), max_tokens=4, cost=None, constraint=None
):
    """One answer of the engine to `PROMPT`; ``params`` are those of `PROCESSORS`."""
    row = SamplingParams(**params, stop=stop, max_tokens=max_tokens, seed=1)
    request = Request(
        PROMPT,
        row,
        mode,
        verifier or CoupledVerifier(),
        constraint=constraint,
        noise=None if row.greedy else noise,
    )
    engine = Engine(
        TableModel(target, VOCAB, max_length=12),
        CharacterTokenizer(TEXT, eos_ids=[EOS]),
        cost=cost,
    )
    return engine.generate(request)


def emitted(
    params,
    mode,
    *,
    verifier=CoupledVerifier,
    stop=(),
    max_tokens=4,
    cost=None,
    constraint=lambda: None,
):
    """The law of the engine's answers; ``mode``, ``verifier`` and ``constraint`` make one a replay.

    ``cost`` is one object for all of them.
    """

    def run(noise):
        sequence = answer(
            params,
            mode(),
            noise,
            verifier=verifier(),
            stop=stop,
            max_tokens=max_tokens,
            cost=cost,
            constraint=constraint(),
        )
        return tuple(sequence.output_ids)

    return enumerate_law(run)


def sampled_draft(noise, draft_law, count, prefix=PROMPT, position=0):
    """A draft drawn from its law with the given noise, fitted to the target's vocabulary."""
    drawn, laws = [], []
    for i in range(count):
        scores = torch.tensor([draft_law((*prefix, *drawn))], dtype=torch.float64).log()
        drawn.append(noise.choose(scores, position + i)[0])
        laws.append(noise.law(scores[0]))
    return Draft(tuple(drawn), "sampled", law=Dense(torch.stack(laws))).within(VOCAB)


def judged(verifier, params, draft, noise, position=0):
    """What ``verifier`` says of one draft after `PROMPT`, with the processors of ``params``."""
    params = SamplingParams(**params)
    prefixes = [(*PROMPT, *draft.token_ids[:i]) for i in range(len(draft) + 1)]
    logits = torch.tensor([target(prefix) for prefix in prefixes], dtype=torch.float64).log()
    counts = TokenCounts(PROMPT, (), VOCAB, torch.device("cpu"))
    scores = process(logits, params, counts, draft.token_ids)
    row = DraftedRow(draft, Greedy() if params.greedy else noise, position)
    (verdict,) = verifier.verify(scores, [row])
    return verdict


def block(verifier, params, draft, length):
    """The law of the first ``length`` tokens: one judged draft, then the target on its own.

    ``draft`` makes a draft from noise, ``verifier`` a verifier for each replay.
    """
    law = {}
    ran = enumerate_law(lambda noise: judged(verifier(), params, draft(noise), noise).token_ids)

    def walk(output, weight):
        if len(output) == length:
            law[output] = law.get(output, 0.0) + weight
            return
        for token, mass in enumerate(processed(SamplingParams(**params), output)):
            if mass > 0:
                walk((*output, token), weight * mass)

    for output, weight in ran.items():
        walk(output[:length], weight)
    return law


def product(params, length):
    """The target's own law of the first ``length`` tokens; an end of sequence ends nothing."""
    law = {(): 1.0}
    for _ in range(length):
        law = {
            (*output, token): weight * mass
            for output, weight in law.items()
            for token, mass in enumerate(processed(SamplingParams(**params), output))
            if mass > 0
        }
    return law


def total_variation(law, expected):
    return 0.5 * sum(
        abs(law.get(output, 0.0) - expected.get(output, 0.0))
        for output in law.keys() | expected.keys()
    )


def assert_equal_laws(law, expected):
    assert sum(law.values()) == pytest.approx(1, abs=TOLERANCE)
    for output in law.keys() | expected.keys():
        assert law.get(output, 0.0) == pytest.approx(expected.get(output, 0.0), abs=TOLERANCE), (
            output
        )
