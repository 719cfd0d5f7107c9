"""Speculation that is switched on and off, again and again.

Servers have leaked state when it was disabled under load, proposed nothing from the second request
on, and accepted less the longer they ran.
"""

import random

from decoders.drafts.suffix import SuffixDraftSource
from decoders.gates import StandardFirst
from decoders.modes import Hybrid, Speculative, Standard
from tests.decoding import VERIFIERS, drain, make_engine, make_request


def test_toggling_leaves_no_slot_no_index_and_no_decay_behind():
    choose = random.Random(7)
    source = SuffixDraftSource()
    kinds = [Standard(), Speculative(source, 6), Hybrid(source, [StandardFirst(3)], 6)]
    engine = make_engine(max_queue=400)
    rates = []
    for _ in range(30):
        requests = [
            make_request(
                "abab",
                choose.choice(kinds),
                verifier=VERIFIERS[choose.choice(list(VERIFIERS))](),
                seed=choose.randrange(50),
                max_tokens=choose.randrange(1, 30),
            )
            for _ in range(10)
        ]
        tickets = engine.submit(requests)
        for _ in range(choose.randrange(6)):
            engine.step()
        choose.choice(tickets).cancel()
        drain(engine)
        rates.append(sum(ticket.stats.num_accepted_tokens for ticket in tickets))

    assert (engine.num_running, engine.num_waiting) == (0, 0)
    assert engine._slots.num_free == engine.model.num_slots
    assert source._rows == {}
    assert sum(rates[15:]) > 0.5 * sum(rates[:15]) > 0


def test_drafts_from_the_text_come_in_every_request_and_not_only_in_the_first():
    source = SuffixDraftSource()
    engine = make_engine()
    counts = [
        engine.generate(
            make_request("abcabcabc", Speculative(source, 6), temperature=0)
        ).stats.num_draft_tokens
        for _ in range(20)
    ]

    assert counts[0] > 0
    assert set(counts) == {counts[0]}


def test_rows_without_drafts_change_nothing_for_those_with():
    """A batch in which speculation is off for one row only, for all, and for none again."""
    for modes in ([0, 1, 1], [0, 0, 0], [1, 1, 1], [1, 0, 1]):
        engine = make_engine()
        chosen = [Speculative(SuffixDraftSource(), 4) if on else Standard() for on in modes]
        tickets = engine.submit(
            [make_request("abab", mode, seed=row) for row, mode in enumerate(chosen)]
        )
        drain(engine)
        for row, ticket in enumerate(tickets):
            alone = make_engine().generate(make_request("abab", seed=row))
            assert ticket.sequence.output_ids == alone.output_ids
            assert (ticket.stats.num_drafts > 0) == bool(modes[row])
