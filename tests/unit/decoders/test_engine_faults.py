"""Whatever breaks in a step costs the rows that it belongs to, and no other."""

import threading

import pytest
import torch

from decoders.engine import Engine
from decoders.line import Line
from decoders.params import FinishReason
from decoders.request import EngineStopped, QueueFull
from decoders.testing import TableModel
from tests.decoding import ALPHABET, TOKENIZER, choosing, drain, make_engine, make_request, modes

POISON = ALPHABET.index("h")


class Faulty(TableModel):
    """Fails as it is told to, before it has computed anything."""

    def __init__(self, fault, **options):
        super().__init__(choosing, len(ALPHABET), **{"max_length": 128, "num_slots": 8} | options)
        self.fault = fault

    def forward(self, rows):
        self.fault(rows)
        return super().forward(rows)


def poisoned(rows):
    if any(row.token_ids and row.token_ids[0] == POISON for row in rows):
        raise RuntimeError("a poisoned row")


def holding(count):
    def fault(rows):
        if sum(len(row.token_ids) for row in rows) > count:
            raise torch.OutOfMemoryError("out of memory")

    return fault


def answers(engine, requests):
    tickets = engine.submit(requests)
    drain(engine)
    return tickets


@pytest.mark.parametrize("place", range(8))
def test_a_poisoned_row_fails_alone_wherever_it_is(place):
    prompts = ["abcd"[i % 4] * 3 for i in range(8)]
    prompts[place] = "hab"
    engine = Engine(Faulty(poisoned), TOKENIZER)

    tickets = answers(engine, [make_request(prompt) for prompt in prompts])

    for i, (ticket, prompt) in enumerate(zip(tickets, prompts, strict=True)):
        if i == place:
            assert ticket.sequence.finish_reason is FinishReason.ERROR
            assert "a poisoned row" in ticket.error
        else:
            assert (
                ticket.sequence.output_ids
                == make_engine().generate(make_request(prompt)).output_ids
            )
    assert engine.num_running == 0


@pytest.mark.parametrize("room", [1, 2, 3, 7])
def test_where_memory_runs_out_less_is_computed_at_a_time_and_nobody_notices(room):
    requests = [make_request("abcabc", mode) for mode in modes().values()]
    engine = Engine(Faulty(holding(room)), TOKENIZER)

    tickets = answers(engine, requests)

    expected = make_engine().generate(make_request("abcabc")).output_ids
    assert [ticket.error for ticket in tickets] == [None] * len(tickets)
    assert all(ticket.sequence.output_ids == expected for ticket in tickets)


def test_where_there_is_no_memory_at_all_every_row_fails_and_the_engine_goes_on():
    engine = Engine(Faulty(holding(0)), TOKENIZER)

    tickets = answers(engine, [make_request() for _ in range(4)])
    engine.model.fault = lambda rows: None

    assert all("OutOfMemory" in ticket.error for ticket in tickets)
    assert engine.generate(make_request()).finish_reason is FinishReason.LENGTH


def test_a_row_that_fails_midway_leaves_the_others_as_they_were():
    steps = []

    def fault(rows):
        steps.append(len(rows))
        if len(steps) > 5 and any(row.slot == 1 for row in rows):
            raise ValueError("slot 1 is broken")

    engine = Engine(Faulty(fault), TOKENIZER)
    tickets = answers(engine, [make_request(prompt) for prompt in ("ab", "cd", "dd")])

    assert [ticket.error is None for ticket in tickets] == [True, False, True]
    assert 0 < tickets[1].sequence.num_output_tokens < 24
    for ticket, prompt in ((tickets[0], "ab"), (tickets[2], "dd")):
        assert ticket.sequence.output_ids == make_engine().generate(make_request(prompt)).output_ids


def test_an_engine_whose_thread_has_died_fails_everybody_and_can_be_revived(monkeypatch):
    engine = make_engine(num_slots=1)
    died = threading.Event()
    admit = engine._admit
    monkeypatch.setattr(engine, "_admit", lambda: (_ for _ in ()).throw(MemoryError("gone")))
    engine.start(lambda error: died.set())
    tickets = engine.submit([make_request() for _ in range(3)])

    assert died.wait(10)
    for ticket in tickets:
        assert ticket.done.wait(10)
        assert "gone" in ticket.error
    with pytest.raises(EngineStopped):
        engine.submit([make_request()])
    assert (engine.num_running, engine.num_waiting) == (0, 0)

    monkeypatch.setattr(engine, "_admit", admit)
    engine.revive()

    assert engine.alive
    answer = engine.generate(make_request())
    engine.stop()
    assert answer.output_ids == make_engine().generate(make_request()).output_ids


def test_a_model_that_breaks_while_its_slot_is_reset_is_no_reason_to_wait_for_ever():
    class Broken(TableModel):
        def forward(self, rows):
            raise RuntimeError("the device is lost")

        def reset(self, slot):
            raise RuntimeError("the device is lost")

    engine = Engine(Broken(choosing, len(ALPHABET)), TOKENIZER)
    died = threading.Event()
    engine.start(lambda error: died.set())
    tickets = engine.submit([make_request(), make_request()])

    assert all(ticket.done.wait(10) for ticket in tickets)
    assert died.wait(10)
    with pytest.raises(RuntimeError, match="device is lost"):
        engine.revive()
    assert not engine.alive


def test_a_stopped_engine_stays_stopped():
    engine = make_engine()
    engine.start()
    engine.stop()
    engine.revive()

    assert not engine.alive


# ---- whose turn it is -----------------------------------------------------------------------------


def scoped(scope, **params):
    request = make_request(**params)
    object.__setattr__(request, "scope", scope)
    return request


def order(engine, tickets):
    """Names of the scopes, in the order in which they were given a slot."""
    drain(engine)
    return [t.request.scope for t in sorted(tickets, key=lambda t: t.admitted_at)]


def test_callers_take_turns_whatever_one_has_waiting():
    engine = make_engine(num_slots=1, max_queue=64)
    tickets = [engine.submit([scoped("flood", max_tokens=2)])[0] for _ in range(20)]
    engine.step()
    tickets += [engine.submit([scoped(name, max_tokens=2)])[0] for name in ("ann", "bob", "ann")]

    taken = order(engine, tickets)

    assert taken[:6] == ["flood", "flood", "ann", "bob", "flood", "ann"]
    assert set(taken[6:]) == {"flood"}


def test_the_requests_of_one_caller_stay_in_their_order():
    engine = make_engine(num_slots=1)
    tickets = [engine.submit([scoped("ann", max_tokens=2)])[0] for _ in range(9)]
    drain(engine)

    assert tickets == sorted(tickets, key=lambda t: t.admitted_at)


def test_a_full_queue_makes_room_for_who_has_less_in_it():
    engine = make_engine(num_slots=1, max_queue=4)
    flood = engine.submit([scoped("flood") for _ in range(5)])
    engine.step()

    late = [engine.submit([scoped("ann")])[0] for _ in range(2)]
    with pytest.raises(QueueFull):
        engine.submit([scoped("ann")])
    with pytest.raises(QueueFull):
        engine.submit([scoped("flood")])
    drain(engine)

    assert [ticket.pushed_out for ticket in flood] == [False, False, False, True, True]
    assert "another caller" in flood[4].error
    assert all(ticket.sequence.finish_reason is FinishReason.LENGTH for ticket in late)
    assert engine.num_waiting == 0


def test_one_caller_may_have_so_many_waiting_and_no_more():
    engine = make_engine(num_slots=1, max_queue=8, max_queue_per_scope=2)
    engine.submit([scoped("ann") for _ in range(3)])
    engine.step()

    with pytest.raises(QueueFull, match="of this caller"):
        engine.submit([scoped("ann")])
    assert len(engine.submit([scoped("bob") for _ in range(2)])) == 2
    drain(engine)


def test_a_line_that_refuses_has_not_changed():
    line = Line(3)
    engine = make_engine(max_queue=0, num_slots=4)
    tickets = engine.submit([scoped("ann") for _ in range(4)])
    line.add(tickets[:3], 0)

    with pytest.raises(QueueFull):
        line.add([tickets[3]], 0)
    assert list(line) == tickets[:3]
    assert [line.take() for _ in range(3)] == tickets[:3]
    assert len(line) == 0


class Unreadable:
    """What is left of a tensor whose device is gone."""

    def tolist(self):
        raise RuntimeError("the device is gone")


def test_measurements_that_cannot_be_read_cost_no_answer(monkeypatch):
    def lose(ticket, columns):
        ticket._measured = Unreadable()

    monkeypatch.setattr("decoders.request.Ticket.add_measured", lose)

    (ticket,) = answers(make_engine(), [make_request()])

    assert ticket.error is None
    assert ticket.sequence.num_output_tokens > 0
