"""Draft models whose vocabulary is padded otherwise than the target's.

Servers have crashed on, or emitted, ids that only the draft head has, and indexed out of the
target's law. The laws are proved in `tests/properties/test_exactness.py` (``narrow``, ``padded``).
"""

import pytest

from decoders.modes import Speculative
from decoders.testing import SampledDraftSource, ScriptedDraftSource
from tests.decoding import ALPHABET, VERIFIERS, choosing, drain, make_engine, make_request

WIDTHS = [2, len(ALPHABET), len(ALPHABET) + 7, 64]


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_draft_head_of_any_width_is_served_and_its_padding_never_emitted(width, verifier):
    source = SampledDraftSource(lambda prefix: [1 / width] * width)
    row = make_engine().generate(
        make_request(mode=Speculative(source, 3), verifier=VERIFIERS[verifier](), max_tokens=60)
    )

    assert row.num_output_tokens == 60
    assert set(row.output_ids) <= set(range(6))
    assert row.stats.num_draft_tokens > 0


@pytest.mark.parametrize("width", WIDTHS)
def test_the_width_of_a_draft_head_changes_no_token_of_a_seed(width):
    source = SampledDraftSource(lambda prefix: [1 / width] * width)

    drafted = make_engine().generate(make_request(mode=Speculative(source, 3)))

    assert drafted.output_ids == make_engine().generate(make_request()).output_ids


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("bad", [len(ALPHABET), 10_000, -1])
def test_an_id_that_the_target_does_not_have_ends_the_draft_before_it(bad, verifier):
    """It must not reach the model: there it would read or write somebody else's memory."""
    seen = []
    engine = make_engine()
    forward = engine.model.forward

    def watched(rows):
        seen.extend(token_id for row in rows for token_id in row.token_ids)
        return forward(rows)

    engine.model.forward = watched
    source = ScriptedDraftSource(
        lambda tokens, count: [choosing(tokens).index(0.3), bad, 0][:count]
    )
    engine.submit(
        [
            make_request(mode=Speculative(source, 3), verifier=VERIFIERS[verifier]())
            for _ in range(2)
        ]
    )
    drain(engine)

    assert set(seen) <= set(range(len(ALPHABET)))
