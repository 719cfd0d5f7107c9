"""The engine's loop: batching, limits, cancellation and failures, on models of a few tokens."""

import threading
from dataclasses import replace

import pytest

from decoders.cost import CostModel, Why
from decoders.drafts.suffix import SuffixDraftSource
from decoders.engine import Engine
from decoders.gates import ContentTokens, EntropyGate, FunctionWords, StandardFirst
from decoders.modes import Hybrid, Speculative, Standard
from decoders.params import FinishReason, ParameterError, SamplingParams
from decoders.profile import Profile
from decoders.request import EngineStopped, PromptTooLong, QueueFull, Request
from decoders.testing import CharacterTokenizer, ScriptedDraftSource, TableModel

ALPHABET = "abcd."
TOKENIZER = CharacterTokenizer(ALPHABET, eos_ids=[4])


def law(prefix):
    """Depends on the last two tokens, so that a wrong cache changes the answer."""
    rows = [(0.4, 0.3, 0.2, 0.1, 0), (0.1, 0.6, 0.1, 0.2, 0), (0.2, 0.1, 0.3, 0.4, 0)]
    before = prefix[-2] if len(prefix) > 1 else 0
    return rows[(prefix[-1] + 2 * before) % 3]


def make_engine(num_slots=3, max_length=64, **options):
    model = TableModel(law, 5, num_slots=num_slots, max_length=max_length)
    return Engine(model, TOKENIZER, **options)


def request(prompt="ab", mode=None, listener=None, **params):
    params = {"max_tokens": 12, "seed": 5} | params
    return Request(
        TOKENIZER.encode(prompt), SamplingParams(**params), mode or Standard(), listener=listener
    )


def drain(engine):
    while engine.step():
        pass


def modes():
    def right(tokens, count):
        return [tokens[-2]] * count

    return [
        Standard(),
        Speculative(SuffixDraftSource(), 4),
        Speculative(ScriptedDraftSource(right), 3),
        Speculative(ScriptedDraftSource(lambda tokens, count: [3] * count), 5),
        Hybrid(ScriptedDraftSource(right), [StandardFirst(4)], 4),
    ]


@pytest.mark.parametrize("temperature", [0, 0.7, 1.3])
@pytest.mark.parametrize("seed", range(6))
def test_every_mode_and_draft_source_gives_the_same_tokens_for_one_seed(temperature, seed):
    outputs = [
        make_engine().generate(request(mode=mode, temperature=temperature, seed=seed)).output_ids
        for mode in modes()
    ]

    assert all(output == outputs[0] for output in outputs)


def test_neighbours_order_and_cancellations_do_not_change_an_answer():
    alone = {
        seed: make_engine().generate(request(seed=seed, temperature=1)).output_ids
        for seed in range(10)
    }
    engine = make_engine()
    everything = modes()
    tickets = engine.submit(
        [request(seed=seed, mode=everything[seed % 5], temperature=1) for seed in range(10)]
    )
    doomed = engine.submit([request(seed=99, max_tokens=60) for _ in range(4)])
    for step in range(500):
        if step in (2, 3, 7):
            doomed[step % 4].cancel()
        if not engine.step():
            break

    assert [ticket.sequence.output_ids for ticket in tickets] == [alone[s] for s in range(10)]


def test_counts_are_what_happened():
    engine = make_engine()
    wrong = ScriptedDraftSource(lambda tokens, count: [4, 4, 4][:count])
    row = engine.generate(request(mode=Speculative(wrong, 3), max_tokens=5))

    assert row.stats.num_steps == 5
    assert row.stats.num_output_tokens == 5
    assert row.stats.num_draft_tokens == 3 + 2 + 1  # none with the prompt, none for the last token
    assert row.stats.num_accepted_tokens == 0
    assert row.stats.accept_counts == [3]
    assert row.stats.by_source == {"scripted": (6, 0)}
    assert row.stats.first_draft_position == 1
    assert row.stats.mean_acceptance_length == 1.0
    assert wrong.forgotten == [0]


def test_accepted_drafts_save_forward_passes():
    def oracle(prefix):
        return [0, 0, 1, 0, 0]

    engine = Engine(TableModel(oracle, 5), TOKENIZER)
    right = ScriptedDraftSource(lambda tokens, count: [2] * count)
    row = engine.generate(request(mode=Speculative(right, 3), max_tokens=9))

    assert row.output_ids == [2] * 9
    assert row.stats.num_steps == 3  # 1, then 4, then 4
    assert row.stats.accept_counts == [0, 0, 0, 2]
    assert row.stats.mean_acceptance_length == 3.0


CHEAP = Profile({(1, 1): 1.0, (1, 40): 1.1})
DEAR = Profile({(1, 1): 1.0, (1, 40): 40.0})


@pytest.mark.parametrize("profile", [CHEAP, DEAR])
@pytest.mark.parametrize("seed", range(4))
def test_what_drafts_cost_never_changes_a_token(profile, seed):
    engine = make_engine(cost=CostModel(profile))
    expected = make_engine().generate(request(seed=seed, max_tokens=40)).output_ids

    for mode in modes() * 2:
        row = engine.generate(request(mode=mode, seed=seed, max_tokens=40))
        assert row.output_ids == expected


def why(mode, cost=None, **params):
    row = make_engine(cost=cost).generate(request(mode=mode, **params))
    return row.stats


def test_every_step_that_might_have_a_draft_says_why_it_is_that_long():
    wrong = Speculative(ScriptedDraftSource(lambda tokens, count: [3] * count), 4)
    silent = Speculative(ScriptedDraftSource(lambda tokens, count: []), 4)
    gated = Hybrid(ScriptedDraftSource(lambda tokens, count: [3] * count), [StandardFirst(6)], 2)
    words = FunctionWords([" the", " cat", " of", " dog", "."])
    cut = Hybrid(
        ScriptedDraftSource(lambda tokens, count: [0, 1][:count]), [ContentTokens(words)], 2
    )

    # The first of the 12 tokens comes with the prompt, the last has no room for a draft.
    assert why(silent).why_k == {Why.NO_MATCH: 10, Why.END: 1}
    assert why(gated, seed=1).why_k[Why.GATE] == 5
    assert why(cut).why_k[Why.GATE] >= 5
    assert why(wrong, CostModel(DEAR)).why_k == {Why.COST: 10, Why.END: 1}
    assert why(Standard()).why_k == {}
    for stats in (why(wrong), why(cut), why(wrong, CostModel(CHEAP))):
        assert sum(stats.why_k.values()) == stats.num_steps - 1


def test_a_draft_that_costs_too_much_is_not_computed():
    mode = Speculative(ScriptedDraftSource(lambda tokens, count: [3] * count), 4)
    engine = make_engine(cost=CostModel(DEAR))
    row = engine.generate(request(mode=mode))

    assert row.stats.num_draft_tokens == 0
    assert engine.model.num_tokens == 2 + 11


def test_the_cost_model_sees_the_length_of_the_match_and_the_domain():
    seen = []

    class Spy(CostModel):
        def observe(self, kind, history, proposed, accepted):
            seen.append((kind.source, kind.match_length > 0, kind.domain, proposed >= accepted))
            super().observe(kind, history, proposed, accepted)

    asked = Request(
        TOKENIZER.encode("abcabcabc"),
        SamplingParams(max_tokens=40, seed=1),
        Speculative(SuffixDraftSource(), 4),
        domain="code",
    )
    make_engine(cost=Spy(CHEAP)).generate(asked)

    assert set(seen) == {("suffix", True, "code", True)}


def test_the_entropy_of_the_token_before_opens_and_shuts_the_gate():
    sure, unsure = (0.97, 0.01, 0.01, 0.01, 0), (0.25, 0.25, 0.25, 0.25, 0)

    def alternating(prefix):
        return sure if len(prefix) % 2 else unsure

    positions = []

    def propose(tokens, count):
        positions.append(len(tokens))
        return [3]

    source = ScriptedDraftSource(propose)
    engine = Engine(TableModel(alternating, 5), TOKENIZER)
    row = engine.generate(request("ab", Hybrid(source, [EntropyGate(0.5)], 2), max_tokens=20))

    # The token at position p came from alternating(p tokens); a draft follows the sure ones.
    assert row.stats.num_drafts == sum(length % 2 == 0 for length in positions)
    assert row.stats.why_k[Why.GATE] == sum(length % 2 == 1 for length in positions)
    assert row.stats.num_drafts > 3
    assert row.stats.why_k[Why.GATE] > 3


def test_a_standard_row_proposes_nothing():
    row = make_engine().generate(request())

    assert row.stats.num_draft_tokens == 0
    assert row.stats.first_draft_position is None


def test_a_hybrid_row_has_no_draft_before_its_position():
    source = ScriptedDraftSource(lambda tokens, count: [1] * count)
    row = make_engine().generate(request(mode=Hybrid(source, [StandardFirst(5)], 3)))

    assert row.stats.first_draft_position == 5


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_a_prompt_in_chunks_gives_the_same_answer(chunk):
    prompt = "abcdabcaabbc"
    whole = make_engine().generate(request(prompt)).output_ids

    assert make_engine(prefill_chunk_tokens=chunk).generate(request(prompt)).output_ids == whole


def test_a_long_prompt_does_not_stall_running_rows():
    engine = make_engine(prefill_chunk_tokens=4)
    (first,) = engine.submit([request()])
    engine.step()
    engine.submit([request("abcd" * 10)])
    before = first.stats.num_output_tokens
    for _ in range(5):
        engine.step()

    assert first.stats.num_output_tokens == before + 5


def test_rows_share_one_forward_whatever_their_mode():
    engine = make_engine()
    engine.submit([request(mode=mode) for mode in modes()[:3]])
    engine.step()
    before = engine.model.num_forwards
    engine.step()

    assert engine.model.num_forwards == before + 1


def test_more_requests_than_slots_all_finish():
    engine = make_engine(num_slots=2, max_queue=50)
    tickets = engine.submit([request(seed=i) for i in range(20)])
    drain(engine)

    assert all(ticket.sequence.num_output_tokens == 12 for ticket in tickets)
    assert (engine.num_running, engine.num_waiting) == (0, 0)


def test_a_full_queue_takes_all_of_a_request_or_none():
    engine = make_engine(num_slots=1, max_queue=2)
    engine.submit([request(), request()])

    with pytest.raises(QueueFull):
        engine.submit([request(), request()])

    assert engine.num_waiting == 2
    engine.submit([request()])


def test_a_cancelled_row_is_gone_before_the_next_forward():
    pieces = []
    engine = make_engine(num_slots=1)
    (ticket, waiting) = engine.submit([request(listener=pieces.append), request()])
    engine.step()
    engine.step()
    emitted = ticket.stats.num_output_tokens

    ticket.cancel()
    engine.step()

    assert pieces[-1].finish_reason is FinishReason.CANCELLED
    assert ticket.stats.num_output_tokens == emitted
    assert ticket.done.is_set()
    assert waiting.stats.num_output_tokens == 1


def test_a_waiting_request_can_be_cancelled():
    engine = make_engine(num_slots=1)
    running, waiting = engine.submit([request(), request()])
    waiting.cancel()
    drain(engine)

    assert waiting.sequence.finish_reason is FinishReason.CANCELLED
    assert waiting.sequence.num_output_tokens == 0
    assert running.sequence.finish_reason is FinishReason.LENGTH


def test_cancelling_a_finished_request_changes_nothing():
    engine = make_engine()
    (ticket,) = engine.submit([request()])
    drain(engine)
    ticket.cancel()
    engine.step()

    assert ticket.sequence.finish_reason is FinishReason.LENGTH


def test_a_slot_is_reused_without_a_trace_of_its_last_row():
    engine = make_engine(num_slots=1)
    engine.generate(request("dddd", seed=1, max_tokens=30))

    again = engine.generate(request(seed=5)).output_ids

    assert again == make_engine().generate(request(seed=5)).output_ids


def test_a_failing_forward_fails_its_rows_and_not_the_engine():
    class Breaks(TableModel):
        broken = True

        def forward(self, rows):
            if self.broken:
                raise RuntimeError("out of memory")
            return super().forward(rows)

    engine = Engine(Breaks(law, 5), TOKENIZER)
    with pytest.raises(RuntimeError, match="out of memory"):
        engine.generate(request())

    engine.model.broken = False
    assert engine.generate(request()).finish_reason is FinishReason.LENGTH
    assert engine.num_running == 0


def test_logits_that_are_not_numbers_fail_their_own_row_only():
    class Nan(TableModel):
        def _logits(self, prefix):
            return [float("nan")] * 5 if prefix[0] == 3 else super()._logits(prefix)

    engine = Engine(Nan(law, 5), TOKENIZER)
    bad, good = engine.submit([request("da"), request("ab")])
    drain(engine)

    assert bad.sequence.finish_reason is FinishReason.ERROR
    assert "not numbers" in bad.error
    assert good.sequence.num_output_tokens == 12


@pytest.mark.parametrize(
    ("prompt", "error"),
    [
        ([], ParameterError),
        ([0] * 64, PromptTooLong),
        ([9], ParameterError),
        ([-1], ParameterError),
    ],
)
def test_a_prompt_that_cannot_be_served_is_refused(prompt, error):
    with pytest.raises(error):
        make_engine().submit([Request(prompt)])


def test_the_context_ends_an_answer_without_a_limit():
    row = make_engine(max_length=10).generate(request("abc", max_tokens=None))

    assert len(row.token_ids) == 10
    assert row.finish_reason is FinishReason.LENGTH


def test_a_draft_never_reaches_past_the_context_or_the_limit():
    source = ScriptedDraftSource(lambda tokens, count: [2] * count)
    model = TableModel(lambda prefix: [0, 0, 1, 0, 0], 5, max_length=10)
    row = Engine(model, TOKENIZER).generate(
        request("abc", mode=Speculative(source, 8), max_tokens=None)
    )

    assert len(row.token_ids) == 10


def test_a_source_that_says_more_than_it_was_asked_for_is_cut():
    source = ScriptedDraftSource(lambda tokens, count: [2] * 40)
    model = TableModel(lambda prefix: [0, 0, 1, 0, 0], 5, max_length=12)
    row = Engine(model, TOKENIZER).generate(
        request("abc", mode=Speculative(source, 2), max_tokens=6)
    )

    assert row.output_ids == [2] * 6
    assert row.stats.num_draft_tokens == 2 + 1  # the first step has no draft, the last needs none


def test_logprobs_are_the_raw_targets_in_every_mode():
    answers = []
    for mode in modes():
        pieces = []
        engine = make_engine()
        engine.generate(
            request(
                mode=mode,
                listener=pieces.append,
                temperature=0.5,
                presence_penalty=1.0,
                logit_bias={0: 2.0},
                logprobs=2,
            )
        )
        answers.append([entry for piece in pieces for entry in piece.logprobs])

    assert len(answers[0]) == 12
    for answer in answers[1:]:
        assert answer == answers[0]
    prefix = tuple(TOKENIZER.encode("ab"))
    for entry in answers[0]:
        probabilities = law(prefix)
        assert pytest.approx(probabilities[entry.token_id]) == 2.718281828459045**entry.logprob
        assert entry.top[0][1] >= entry.top[1][1]
        prefix += (entry.token_id,)


class Faulty(ScriptedDraftSource):
    """A source that fails in one of its methods."""

    def __init__(self, method):
        super().__init__(lambda tokens, count: [1] * count)
        self._method = method

    def __getattribute__(self, name):
        if name == object.__getattribute__(self, "__dict__").get("_method"):
            raise RuntimeError("a faulty source")
        return super().__getattribute__(name)


@pytest.mark.parametrize("method", ["propose", "forget"])
def test_a_source_that_fails_costs_neither_its_row_nor_the_others_their_answer(method, caplog):
    engine = make_engine()
    bad, good = engine.submit([request(mode=Speculative(Faulty(method), 3)), request()])
    drain(engine)

    expected = make_engine().generate(request()).output_ids
    assert bad.sequence.output_ids == good.sequence.output_ids == expected
    assert engine.num_running == 0
    assert "draft source" in caplog.text


@pytest.mark.parametrize("wrong", [999_999, -1, 5])
def test_a_draft_is_cut_at_the_first_id_that_is_no_token(wrong):
    source = ScriptedDraftSource(lambda tokens, count: [1, wrong, 1][:count])
    engine = make_engine()
    row = engine.generate(request(mode=Speculative(source, 3)))

    assert row.output_ids == make_engine().generate(request()).output_ids
    assert row.stats.num_draft_tokens == row.stats.num_drafts > 0


def test_a_verifier_that_fails_fails_its_own_row_only(caplog):
    class Broken:
        name = "broken"
        exact = True

        def verify(self, scores, rows):
            raise RuntimeError("no verdict")

    engine = make_engine()
    bad, good = engine.submit([replace(request(), verifier=Broken()), request()])
    drain(engine)

    assert "no verdict" in bad.error
    assert good.sequence.finish_reason is FinishReason.LENGTH
    assert "no verdict" in caplog.text


def test_a_listener_that_fails_does_not_stop_anybody(caplog):
    def listen(piece):
        raise RuntimeError("the loop is closed")

    engine = make_engine()
    tickets = engine.submit([request(listener=listen), request()])
    drain(engine)

    assert all(ticket.sequence.num_output_tokens == 12 for ticket in tickets)
    assert "listener" in caplog.text


def test_when_the_loop_itself_breaks_nobody_waits_for_ever(monkeypatch, caplog):
    engine = make_engine(num_slots=1)
    monkeypatch.setattr(engine, "_admit", lambda: (_ for _ in ()).throw(MemoryError("gone")))
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    engine.start()
    (ticket,) = engine.submit([request()])

    assert ticket.done.wait(10)
    assert "gone" in ticket.error
    engine._thread.join(10)
    assert not engine.alive
    with pytest.raises(EngineStopped):
        engine.submit([request()])


def test_the_thread_serves_many_callers_at_once_and_stops():
    engine = make_engine(num_slots=3, max_queue=100)
    engine.start()
    results = {}

    def call(seed):
        results[seed] = engine.generate(request(seed=seed)).output_ids

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    engine.stop()

    assert len(results) == 20
    assert results[5] == make_engine().generate(request(seed=5)).output_ids
    with pytest.raises(EngineStopped):
        engine.submit([request()])


def test_stopping_cancels_what_runs_and_what_waits():
    engine = make_engine(num_slots=1)
    tickets = engine.submit([request(max_tokens=50) for _ in range(3)])
    engine.start()
    engine.stop()
    engine.stop()

    assert all(ticket.done.is_set() for ticket in tickets)
    assert engine.num_running == 0
