"""Token counts of an answer of several choices, as the client sees them."""

from gateway.api.render import Fold, usage_of
from gateway.chunk import Chunk
from gateway.reply import Receipt
from gateway.types import Decision, FinishReason, Mode, Usage

RECEIPT = Receipt(
    request_id="req",
    decision_id="dec",
    created_at=0.0,
    decision=Decision(mode=Mode.STANDARD, rule="r", policy="p", policy_hash="h"),
    prompt_tokens=30,
)


def end(index: int, cached_tokens: int) -> Chunk:
    return Chunk(index, finish_reason=FinishReason.STOP, usage=Usage(30, 7, cached_tokens))


def test_what_later_choices_copy_of_the_first_is_not_called_cached() -> None:
    fold = Fold(RECEIPT, 2)
    fold.add(end(1, 29))
    fold.add(end(0, 0))

    assert fold.usage == Usage(30, 14, 0)


def test_a_prompt_that_was_there_for_every_choice_is_cached() -> None:
    fold = Fold(RECEIPT, 2)
    fold.add(end(0, 20))
    fold.add(end(1, 29))

    assert usage_of(fold.usage) == {
        "prompt_tokens": 30,
        "completion_tokens": 14,
        "total_tokens": 44,
        "prompt_tokens_details": {"cached_tokens": 20},
    }


def test_an_answer_without_choices_has_cached_nothing() -> None:
    assert Fold(RECEIPT, 0).usage == Usage(30, 0, 0)
