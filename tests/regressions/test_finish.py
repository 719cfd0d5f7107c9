"""Where answers end, when the end lies inside an accepted draft.

Speculative servers have leaked tokens behind a stop, reported ``length`` for ``stop``, missed a stop
string early in a long block, gone on past an end-of-sequence token inside a draft, and left usage,
log-probabilities or the cache at the uncut block. How a block is cut is tested token by token in
`tests/unit/decoders/test_sequence.py`; here it is the whole engine with drafts that are right.
"""

import pytest

from decoders.modes import Speculative
from decoders.params import FinishReason
from tests.decoding import (
    ALPHABET,
    EOS,
    TOKENIZER,
    VERIFIERS,
    make_engine,
    make_request,
    modes,
    saying,
    telling,
)

TEXT = "bcdefghabcdefgha"


def answer(verifier, *, text=TEXT, draft=None, count=16, **params):
    pieces = []
    mode = Speculative(telling(draft if draft is not None else text), count)
    request = make_request(
        "a", mode, verifier=VERIFIERS[verifier](), listener=pieces.append, **params
    )
    row = make_engine(saying(text)).generate(request)
    return row, "".join(piece.text for piece in pieces), pieces


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize(
    ("stop", "max_tokens", "reason", "text"),
    [
        ("def", 10, FinishReason.STOP, "bc"),
        ("def", 5, FinishReason.STOP, "bc"),
        ("def", 4, FinishReason.LENGTH, "bcde"),
        ("def", 3, FinishReason.LENGTH, "bcd"),
        ("bc", 16, FinishReason.STOP, ""),
        ("ha", 16, FinishReason.STOP, "bcdefg"),
    ],
)
def test_a_block_across_a_stop_and_the_limit_ends_at_the_first_of_them(
    verifier, stop, max_tokens, reason, text
):
    row, shown, _ = answer(verifier, stop=(stop,), max_tokens=max_tokens)

    assert row.stats.num_steps == 1
    assert (row.finish_reason, shown) == (reason, text)


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("at", range(len(TEXT) - 1))
def test_a_stop_string_is_found_anywhere_in_a_block_of_16(verifier, at):
    text = "c" * at + "bb" + "d" * (len(TEXT) - 2 - at)

    row, shown, _ = answer(verifier, text=text, stop=("bb",))

    assert row.stats.num_steps == 1
    assert shown == "c" * at
    assert row.num_output_tokens == at + 2


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_token_ids_and_logprobs_end_with_the_text(verifier):
    row, shown, pieces = answer(verifier, stop=("fg",), logprobs=1)
    logprobs = [entry for piece in pieces for entry in piece.logprobs]

    assert TOKENIZER.decode(row.output_ids) == "bcdefg"
    assert row.stats.num_output_tokens == 6
    assert shown == "bcde"
    assert TOKENIZER.decode([entry.token_id for entry in logprobs]) == "bcde"


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("at", range(7))
def test_an_end_of_sequence_at_any_place_of_a_draft_ends_the_answer(verifier, at):
    draft = TEXT[:at] + "." + TEXT[at : at + 4]

    row, shown, _ = answer(verifier, text=TEXT[:at], draft=draft)

    assert row.output_ids == [*TOKENIZER.encode(TEXT[:at]), EOS]
    assert (row.finish_reason, shown) == (FinishReason.STOP, TEXT[:at])
    assert row.stats.num_steps == 1


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("behind", ["", "b", "hhhh", "...."])
def test_what_a_draft_says_behind_the_end_does_not_matter(verifier, behind):
    row, shown, _ = answer(verifier, text="bcd", draft="bcd." + behind)

    assert row.output_ids == [*TOKENIZER.encode("bcd"), EOS]
    assert shown == "bcd"


@pytest.mark.parametrize("mode", modes())
def test_after_a_stop_inside_a_block_a_continuation_is_that_of_standard_decoding(mode):
    """Randomness, cache and usage are those of the tokens that were kept."""
    whole = make_engine().generate(make_request(max_tokens=20))
    stop = TOKENIZER.decode(whole.output_ids[6:8])
    engine = make_engine(num_slots=1)

    cut = engine.generate(make_request(mode=modes()[mode], stop=(stop,), max_tokens=20))
    prompt = "ab" + TOKENIZER.decode(cut.output_ids)
    after = engine.generate(make_request(prompt, modes()[mode], seed=9, max_tokens=6))

    assert cut.output_ids == whole.output_ids[: cut.num_output_tokens]
    assert cut.stats.num_output_tokens == len(cut.output_ids)
    assert (
        after.output_ids
        == make_engine().generate(make_request(prompt, seed=9, max_tokens=6)).output_ids
    )
    assert len(ALPHABET) == engine.model.vocab_size
