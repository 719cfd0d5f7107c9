"""Computed prompts are used again: never wrongly, never across scopes, and once for all choices.

The table model believes its slots and nothing else, so a token too many kept, a wrong slot or a
copy that is too short changes what it says.
"""

import random

import pytest
import torch

from decoders.drafts.suffix import SuffixDraftSource
from decoders.engine import Engine
from decoders.loader import load
from decoders.modes import Speculative, Standard
from decoders.params import FinishReason, SamplingParams
from decoders.request import Request
from decoders.slots import MIN_SHARED_TOKENS, common_length
from decoders.testing import CharacterTokenizer, ScriptedDraftSource, TableModel

TOKENIZER = CharacterTokenizer("abcd.", eos_ids=[4])
PROMPT = "abcdabcaabbcddbacbda" * 2


def law(prefix):
    """Depends on every token before, so that one wrong token in a slot shows at once."""
    total = sum((i + 1) * token for i, token in enumerate(prefix))
    masses = [1 + (total * (i + 3)) % 7 for i in range(4)]
    return [mass / sum(masses) for mass in masses] + [0]


class NoCopies:
    """A table model that cannot copy slots."""

    def __init__(self, **options):
        self._model = TableModel(law, 5, **options)
        self.vocab_size, self.num_slots = self._model.vocab_size, self._model.num_slots
        self.max_length = self._model.max_length

    def forward(self, rows):
        return self._model.forward(rows)

    def reset(self, slot):
        self._model.reset(slot)

    @property
    def num_tokens(self):
        return self._model.num_tokens


def make_engine(model=TableModel, num_slots=3, **options):
    sizes = {"num_slots": num_slots, "max_length": 160}
    made = model(**sizes) if model is NoCopies else model(law, 5, **sizes)
    return Engine(made, TOKENIZER, max_queue=200, **options)


def request(prompt=PROMPT, mode=None, scope="", **params):
    params = {"max_tokens": 12, "seed": 5} | params
    ids = TOKENIZER.encode(prompt) if isinstance(prompt, str) else prompt
    return Request(ids, SamplingParams(**params), mode or Standard(), scope=scope)


def fresh(asked):
    """What an engine answers that has nothing in its slots."""
    return make_engine().generate(asked).output_ids


def drain(engine):
    while engine.step():
        pass


@pytest.mark.parametrize("model", [TableModel, NoCopies])
def test_the_same_prompt_again_costs_one_token(model):
    engine = make_engine(model)
    engine.generate(request())
    before = engine.model.num_tokens

    again = engine.generate(request(seed=6, max_tokens=1))

    assert again.stats.num_cached_tokens == len(PROMPT) - 1
    assert engine.model.num_tokens == before + 1
    assert again.output_ids == fresh(request(seed=6, max_tokens=1))


@pytest.mark.parametrize("model", [TableModel, NoCopies])
@pytest.mark.parametrize("seed", range(5))
def test_a_conversation_goes_on_from_its_last_answer(model, seed):
    engine = make_engine(model)
    draft = Speculative(ScriptedDraftSource(lambda tokens, count: [1, 2, 3, 0][:count]), 4)
    first = engine.generate(request(mode=draft, seed=seed))
    longer = request([*first.token_ids, 0, 1, 2], seed=seed)

    second = engine.generate(longer)

    assert second.stats.num_cached_tokens == len(first.token_ids) - 1
    assert second.output_ids == fresh(longer)


def test_what_a_stop_string_cut_off_is_not_kept():
    engine = make_engine()
    right = fresh(request())
    oracle = ScriptedDraftSource(lambda tokens, count: right[len(tokens) - len(PROMPT) :][:count])
    stop = TOKENIZER.decode(right[3:5])
    first = engine.generate(request(mode=Speculative(oracle, 8), stop=(stop,)))
    other = request([*first.token_ids, *right[5:8], 3])

    second = engine.generate(other)

    assert first.finish_reason is FinishReason.STOP
    assert second.stats.num_cached_tokens < len(first.token_ids)
    assert second.output_ids == fresh(other)


@pytest.mark.parametrize("extra", [0, 1])
def test_a_short_common_beginning_is_computed_again(extra):
    engine = make_engine()
    engine.generate(request())
    shared = PROMPT[: MIN_SHARED_TOKENS - 1 + extra]
    ends_otherwise = "a" if PROMPT[len(shared)] != "a" else "b"
    asked = request(shared + ends_otherwise + "dcba")

    row = engine.generate(asked)

    assert row.stats.num_cached_tokens == (MIN_SHARED_TOKENS if extra else 0)
    assert row.output_ids == fresh(asked)


def test_nothing_is_shared_between_scopes():
    engine = make_engine()
    engine.generate(request(scope="one"))
    before = engine.model.num_tokens

    other = engine.generate(request(scope="two", max_tokens=1))

    assert other.stats.num_cached_tokens == 0
    assert engine.model.num_tokens == before + len(PROMPT)
    assert engine.model.num_copies == 0


def test_a_running_row_of_another_scope_is_not_copied():
    engine = make_engine(num_slots=2)
    one, two = engine.submit([request(scope="one"), request(scope="two")])
    drain(engine)

    assert (one.stats.num_cached_tokens, two.stats.num_cached_tokens) == (0, 0)
    assert engine.model.num_copies == 0


def test_a_slot_given_to_another_scope_forgets_the_first():
    engine = make_engine(num_slots=1)
    engine.generate(request(scope="one"))
    engine.generate(request(scope="two"))

    assert engine.generate(request(scope="one")).stats.num_cached_tokens == 0


@pytest.mark.parametrize("chunk", [3, 7, 256])
def test_choices_of_one_prompt_compute_it_once(chunk):
    engine = make_engine(num_slots=4, prefill_chunk_tokens=chunk)
    asked = [request(seed=seed, temperature=1.5) for seed in range(4)]
    tickets = engine.submit(asked)
    drain(engine)

    assert [t.stats.num_cached_tokens for t in tickets] == [0] + [len(PROMPT) - 1] * 3
    assert engine.model.num_copies == 3
    computed = len(PROMPT) + 3  # and every token of an answer but its last
    assert engine.model.num_tokens == computed + 4 * 11
    assert [t.sequence.output_ids for t in tickets] == [fresh(row) for row in asked]


def test_without_copies_each_choice_computes_its_prompt():
    engine = make_engine(NoCopies, num_slots=2)
    asked = [request(seed=seed) for seed in range(2)]
    tickets = engine.submit(asked)
    drain(engine)

    assert [t.stats.num_cached_tokens for t in tickets] == [0, 0]
    assert [t.sequence.output_ids for t in tickets] == [fresh(row) for row in asked]


@pytest.mark.parametrize("steps", range(7))
def test_when_the_row_that_computes_for_others_is_cancelled_another_goes_on(steps):
    engine = make_engine(num_slots=3, prefill_chunk_tokens=8)
    asked = [request(seed=seed) for seed in range(3)]
    tickets = engine.submit(asked)
    for _ in range(steps):
        engine.step()
    tickets[0].cancel()
    drain(engine)

    outputs = [ticket.sequence.output_ids for ticket in tickets[1:]]
    assert outputs == [fresh(row) for row in asked[1:]]
    # What the cancelled row had computed is not computed again.
    assert engine.model.num_tokens <= len(PROMPT) + 2 + 3 * 11


def test_a_prompt_cancelled_half_way_counts_for_what_was_computed():
    engine = make_engine(num_slots=1, prefill_chunk_tokens=20)
    (ticket,) = engine.submit([request()])
    engine.step()
    ticket.cancel()
    engine.step()

    again = engine.generate(request())

    assert again.stats.num_cached_tokens == 20
    assert again.output_ids == fresh(request())


class Fails(TableModel):
    """Fails or says no numbers while told to, having written to its slots."""

    trouble = ""

    def forward(self, rows):
        logits = super().forward(rows)
        if self.trouble == "raises":
            raise RuntimeError("out of memory")
        return logits * float("nan") if self.trouble == "nan" else logits


@pytest.mark.parametrize("trouble", ["raises", "nan"])
def test_a_failed_row_leaves_nothing_to_be_used_again(trouble):
    engine = make_engine(Fails)
    engine.model.trouble = trouble
    with pytest.raises(RuntimeError):
        engine.generate(request())
    engine.model.trouble = ""

    again = engine.generate(request())

    assert again.stats.num_cached_tokens == 0
    assert again.output_ids == fresh(request())


@pytest.mark.parametrize("trouble", ["raises", "nan"])
def test_rows_that_wait_for_a_failing_one_are_served(trouble):
    engine = make_engine(Fails, num_slots=3, prefill_chunk_tokens=16)
    asked = [request(seed=seed) for seed in range(3)]
    tickets = engine.submit(asked)
    engine.step()
    engine.step()
    engine.model.trouble = trouble
    engine.step()
    engine.model.trouble = ""
    drain(engine)

    assert tickets[0].sequence.finish_reason is FinishReason.ERROR
    outputs = [ticket.sequence.output_ids for ticket in tickets[1:]]
    assert outputs == [fresh(row) for row in asked[1:]]


def test_the_slot_unused_for_longest_is_overwritten():
    engine = make_engine(num_slots=2)
    prompts = ["a" * 30, "b" * 30, "c" * 30]
    engine.generate(request(prompts[0]))
    engine.generate(request(prompts[1]))
    engine.generate(request(prompts[0]))
    engine.generate(request(prompts[2]))

    assert engine.generate(request(prompts[0])).stats.num_cached_tokens == 29
    assert engine.generate(request(prompts[1])).stats.num_cached_tokens == 0


def test_a_beginning_shared_by_many_is_copied_rather_than_overwritten():
    engine = make_engine(num_slots=3)
    system = "abcd" * 6
    long = request(system + "d" * 60)
    engine.generate(long)

    short = engine.generate(request(system + "ca"))
    again = engine.generate(long)

    assert short.stats.num_cached_tokens == len(system)
    assert again.stats.num_cached_tokens == len(long.prompt_ids) - 1


def test_running_rows_stay_side_by_side():
    engine = make_engine(num_slots=8)
    for letter in "abcd":
        engine.generate(request(letter * 20))
    tickets = engine.submit([request(letter * 20, scope="x") for letter in "abc"])
    engine.step()
    slots = sorted(ticket.slot for ticket in tickets)

    assert slots == list(range(slots[0], slots[0] + 3))


@pytest.mark.parametrize("model", [TableModel, NoCopies])
@pytest.mark.parametrize("seed", range(8))
def test_answers_are_those_of_empty_slots_on_random_schedules(model, seed):
    source = random.Random(seed)
    systems = ["".join(source.choices("abcd", k=source.randrange(10, 50))) for _ in range(3)]
    modes = [
        Standard(),
        Speculative(SuffixDraftSource(), 4),
        Speculative(ScriptedDraftSource(lambda tokens, count: [3, 1, 0][:count]), 3),
    ]

    def ask():
        tail = "".join(source.choices("abcd", k=source.randrange(20)))
        return request(
            source.choice(systems) + tail,
            source.choice(modes),
            source.choice(["", "", "other"]),
            seed=source.randrange(4),
            max_tokens=source.randrange(1, 15),
            stop=source.choice([(), ("ab",), ("dc", "bb")]),
        )

    engine = make_engine(model, prefill_chunk_tokens=source.choice([5, 16, 256]))
    asked, tickets = [], []
    for _ in range(120):
        if source.random() < 0.4:
            rows = [ask()] * source.choice([1, 1, 3])
            asked += rows
            tickets += engine.submit(rows)
        if tickets and source.random() < 0.1:
            source.choice(tickets).cancel()
        engine.step()
    drain(engine)

    assert sum(ticket.stats.num_cached_tokens for ticket in tickets) > 100
    for row, ticket in zip(asked, tickets, strict=True):
        if ticket.sequence.finish_reason is not FinishReason.CANCELLED:
            assert ticket.sequence.output_ids == fresh(row)
    assert (engine.num_running, engine.num_waiting) == (0, 0)


def test_a_real_model_says_the_same_from_copied_keys_and_values(tiny_model):
    loaded = load(str(tiny_model), device="cpu", dtype="float32", num_slots=3, max_length=200)
    prompt = loaded.tokenizer.encode("A system prompt that all of these questions share. " * 2)
    asked = [
        Request([*prompt, 70 + i], SamplingParams(seed=i, max_tokens=20, logprobs=3), scope="s")
        for i in range(3)
    ]
    alone = []
    for row in asked:
        engine = Engine(loaded.model, loaded.tokenizer)
        alone.append(engine.generate(row).output_ids)
    engine = Engine(loaded.model, loaded.tokenizer)

    tickets = engine.submit(asked)
    drain(engine)
    again = engine.generate(asked[0])

    assert [ticket.stats.num_cached_tokens for ticket in tickets] == [0, len(prompt), len(prompt)]
    assert [ticket.sequence.output_ids for ticket in tickets] == alone
    assert again.stats.num_cached_tokens == len(prompt)
    assert again.output_ids == alone[0]


def test_a_copied_slot_gives_the_logits_of_its_source(tiny_model):
    from decoders.models.base import Row

    model = load(str(tiny_model), device="cpu", dtype="float32", num_slots=3, max_length=64).model
    model.forward([Row(0, 0, tuple(range(30)), 1)])
    model.copy_prefix(0, 2, 30)

    source, copied = (model.forward([Row(slot, 30, (5, 6), 2)]) for slot in (0, 2))

    assert torch.equal(source, copied)


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 40])
def test_the_common_beginning_is_counted_from_the_least_that_matters_on(length):
    one = list(range(40))
    other = [*one[:length], -1, -2]

    expected = length if length >= MIN_SHARED_TOKENS else 0
    assert common_length(one, other) == common_length(other, one) == expected
