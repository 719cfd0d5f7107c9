"""Small engines for tests: a target that says one text, one that chooses, and drafts for both."""

from decoders.engine import Engine
from decoders.gates import StandardFirst
from decoders.modes import Hybrid, Speculative, Standard
from decoders.params import SamplingParams
from decoders.request import Request
from decoders.testing import CharacterTokenizer, SampledDraftSource, ScriptedDraftSource, TableModel
from decoders.verifiers.coupled import CoupledVerifier
from decoders.verifiers.rejection import RejectionVerifier

ALPHABET = "abcdefgh."
EOS = 8
TOKENIZER = CharacterTokenizer(ALPHABET, eos_ids=[EOS])
VERIFIERS = {"coupled": CoupledVerifier, "rejection": RejectionVerifier}


def choosing(prefix):
    """By the last two tokens, so that a wrong cache changes the answer; never the end."""
    rows = [
        (0.4, 0.3, 0.1, 0.1, 0.05, 0.05, 0, 0, 0),
        (0.05, 0.5, 0.2, 0.1, 0.1, 0.05, 0, 0, 0),
        (0.1, 0.1, 0.1, 0.3, 0.3, 0.1, 0, 0, 0),
    ]
    before = prefix[-2] if len(prefix) > 1 else 0
    return rows[(prefix[-1] + 2 * before) % 3]


def saying(text, prompt="a"):
    """A target that gives ``text`` after ``prompt`` with certainty, and the end after that."""
    script = [ALPHABET.index(c) for c in text] + [EOS]

    def law(prefix):
        at = len(prefix) - len(prompt)
        token_id = script[at] if at < len(script) else EOS
        return [float(i == token_id) for i in range(len(ALPHABET))]

    return law


def telling(text, prompt="a"):
    """Drafts of ``text`` from wherever the answer is, and of as much as is asked for."""

    def script(token_ids, count):
        at = len(token_ids) - len(prompt)
        return [ALPHABET.index(c) for c in text[at : at + count]]

    return ScriptedDraftSource(script)


def make_engine(law=choosing, *, num_slots=4, max_length=128, **options):
    model = TableModel(law, len(ALPHABET), num_slots=num_slots, max_length=max_length)
    return Engine(model, TOKENIZER, **options)


def make_request(prompt="ab", mode=None, *, verifier=None, listener=None, **params):
    params = {"max_tokens": 24, "seed": 5} | params
    return Request(
        TOKENIZER.encode(prompt),
        SamplingParams(**params),
        mode or Standard(),
        verifier or CoupledVerifier(),
        listener=listener,
    )


def likeliest(token_ids, count):
    tokens = list(token_ids)
    for _ in range(count):
        law = choosing(tokens)
        tokens.append(law.index(max(law)))
    return tokens[len(token_ids) :]


def modes():
    """One of each kind of draft: none, right at times, wrong always, sampled, gated."""
    return {
        "standard": Standard(),
        "likeliest": Speculative(ScriptedDraftSource(likeliest), 3),
        "wrong": Speculative(ScriptedDraftSource(lambda tokens, count: [7] * count), 5),
        "sampled": Speculative(SampledDraftSource(choosing), 4),
        "gated": Hybrid(ScriptedDraftSource(likeliest), [StandardFirst(4)], 4),
    }


def drain(engine):
    while engine.step():
        pass
