"""Streamed text through blocks of every size.

Servers have sent characters twice, and U+FFFD where a block ended inside a character. That any split
of tokens decodes to the whole is in `tests/unit/decoders/test_detokenize.py`; here it is the blocks
that accepted drafts make.
"""

import pytest

from decoders.engine import Engine
from decoders.modes import Speculative, Standard
from decoders.params import SamplingParams
from decoders.request import Request
from decoders.testing import ScriptedDraftSource, TableModel
from tests.decoding import VERIFIERS

TEXT = "a😀漢字かなé ñ🏳️‍🌈 end"
SCRIPT = [*TEXT.encode(), 256]


class ByteTokenizer:
    """One token a byte; 256 ends the answer."""

    eos_ids = frozenset({256})

    def encode(self, text):
        return list(text.encode())

    def encode_chat(self, messages):
        return self.encode("".join(message["content"] for message in messages))

    def decode(self, token_ids):
        return bytes(t for t in token_ids if t < 256).decode(errors="replace")


def law(prefix):
    wanted = SCRIPT[min(len(prefix) - 1, len(SCRIPT) - 1)]
    return [float(i == wanted) for i in range(257)]


def stream(mode, verifier, **params):
    pieces = []
    request = Request(
        [10], SamplingParams(**params), mode, VERIFIERS[verifier](), listener=pieces.append
    )
    row = Engine(TableModel(law, 257, max_length=128), ByteTokenizer()).generate(request)
    return [piece.text for piece in pieces], row


def right(count, offset):
    """Right drafts in blocks of ``count``, the first of them shorter, so that all cuts come up."""

    def script(tokens, limit):
        at = len(tokens) - 1
        return SCRIPT[at : at + (min(limit, offset) if at == 0 else limit)]

    return Speculative(ScriptedDraftSource(script), count)


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("offset", [0, 1, 2, 3])
def test_every_split_into_blocks_streams_the_same_whole_characters(count, offset, verifier):
    pieces, row = stream(right(count, offset), verifier)

    assert "".join(pieces) == TEXT == ByteTokenizer().decode(row.output_ids)
    assert not any("\ufffd" in piece for piece in pieces)
    assert row.stats.num_steps < len(SCRIPT)


@pytest.mark.parametrize("max_tokens", range(1, len(SCRIPT)))
def test_a_limit_inside_a_character_shows_what_decoding_all_tokens_gives(max_tokens):
    for mode in (Standard(), right(4, 2)):
        pieces, row = stream(mode, "coupled", max_tokens=max_tokens)
        assert "".join(pieces) == ByteTokenizer().decode(row.output_ids)
