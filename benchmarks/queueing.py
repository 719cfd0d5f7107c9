"""Requests on the servers of twin arms, event by event.

The answers that a server writes at once share its tokens a second equally; what comes on top waits
at that server, in order. Nothing here is random: arrivals and lengths are given.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import count

import numpy as np
from numpy.typing import NDArray

from benchmarks.curves import SPECULATIVE, STANDARD, Curve

NOWHERE = -1


class Kind(IntEnum):
    """What the policy decided for a request."""

    BANNED = 0
    """Standard, because a rule bans the rest."""
    STANDARD = 1
    SPECULATIVE = 2
    HYBRID = 3


@dataclass(frozen=True)
class Arm:
    """Servers that are alike."""

    curve: Curve
    replicas: int
    slots: int = 8
    """Answers that one writes at once."""
    queue: int = 16
    """Requests that may wait at one; further ones are refused."""


@dataclass(frozen=True)
class Traffic:
    """Requests in the order in which they come; one entry each."""

    arrivals: NDArray[np.float64]
    """Seconds, not falling."""
    tokens: NDArray[np.float64]
    """Length of the answer."""
    kinds: NDArray[np.int8]
    standard_first: int = 10
    """Tokens of a hybrid answer that the standard arm writes."""

    @property
    def seconds(self) -> float:
        """From 0 to the last arrival."""
        return float(self.arrivals[-1]) if len(self.arrivals) else 0.0


@dataclass(frozen=True)
class Course:
    """What became of each request, and of each arm."""

    first: NDArray[np.float64]
    """Seconds from arrival to the first token; NaN: there was none."""
    total: NDArray[np.float64]
    """Seconds from arrival to the end; NaN: refused."""
    began_on: NDArray[np.int8]
    """0: the standard arm, 1: the speculative one, -1: nowhere."""
    ended_on: NDArray[np.int8]
    """The same, of the last token."""
    utilisation: dict[str, float]
    """Arm → share of its slots that were busy, until the last arrival."""
    in_system: float
    """Requests running and waiting, on average until the last arrival."""


class _Replica:
    """One server: what it writes shares its rate, so that one clock of tokens serves all."""

    __slots__ = ("arm", "busy", "clock", "held", "running", "shares", "since", "stamp", "waiting")

    def __init__(self, arm: int, shares: Sequence[float]) -> None:
        self.arm = arm
        self.shares = shares
        """Tokens a second of each of n answers."""
        self.running: list[tuple[float, int]] = []
        """A heap of (when it is through, by the clock; request)."""
        self.waiting: deque[int] = deque()
        self.clock = 0.0
        """Tokens that an answer that was always there would have."""
        self.since = 0.0
        self.stamp = -1
        """Of the one event that counts."""
        self.busy = 0.0
        """Slot seconds."""
        self.held = 0.0
        """Seconds of requests that run or wait."""

    @property
    def load(self) -> int:
        return len(self.running) + len(self.waiting)

    def advance(self, time: float, horizon: float) -> None:
        running = len(self.running)
        self.clock += (time - self.since) * self.shares[running]
        counted = min(time, horizon) - self.since
        if counted > 0:
            self.busy += counted * running
            self.held += counted * (running + len(self.waiting))
        self.since = time


class _LeastLoaded:
    """The servers of an arm by what they have to do; every change is one step up or down."""

    def __init__(self, replicas: Sequence[_Replica], most: int) -> None:
        self._most = most
        self._by_load: list[list[_Replica]] = [list(replicas), *([] for _ in range(most))]
        self._place = {replica: i for i, replica in enumerate(replicas)}
        self._load = dict.fromkeys(replicas, 0)
        self._least = 0

    def choose(self) -> _Replica | None:
        """One with the least to do; None where all are full."""
        while self._least < self._most and not self._by_load[self._least]:
            self._least += 1
        return self._by_load[self._least][-1] if self._least < self._most else None

    def moved(self, replica: _Replica) -> None:
        """Its load has changed."""
        old, new = self._load[replica], replica.load
        if old == new:
            return
        bucket = self._by_load[old]
        last = bucket.pop()
        if last is not replica:
            bucket[self._place[replica]] = last
            self._place[last] = self._place[replica]
        self._place[replica] = len(self._by_load[new])
        self._by_load[new].append(replica)
        self._load[replica] = new
        self._least = min(self._least, new)


_FIRST, _REST, _CONTINUED = range(3)
"""Stages of a request: its prompt is to be read and its first token written; what the arm writes
after that; of a hybrid answer what another arm writes, which reads the prompt again. With kinds as
plain numbers, because they are compared a million times."""
_SPECULATIVE, _HYBRID = int(Kind.SPECULATIVE), int(Kind.HYBRID)


class _Simulation:
    """The state between two events."""

    def __init__(self, arms: Sequence[Arm], traffic: Traffic) -> None:
        self._arms = arms
        self._replicas = [
            [_Replica(i, _shares(arm)) for _ in range(arm.replicas)] for i, arm in enumerate(arms)
        ]
        self._choice = [
            _LeastLoaded(replicas, arm.slots + arm.queue)
            for replicas, arm in zip(self._replicas, arms, strict=True)
        ]
        self._events: list[tuple[float, int, _Replica]] = []
        self._stamps = count()
        self._arrivals: list[float] = traffic.arrivals.tolist()
        self._tokens: list[float] = np.maximum(traffic.tokens, 1.0).tolist()
        self._kinds: list[int] = traffic.kinds.tolist()
        self._standard_first = traffic.standard_first
        self._horizon = traffic.seconds
        size = len(self._arrivals)
        self._stage = [_FIRST] * size
        self._first = [float("nan")] * size
        self._total = [float("nan")] * size
        self._began_on = [NOWHERE] * size
        self._ended_on = [NOWHERE] * size

    def run(self, progress: Callable[[int], object]) -> Course:
        """Until the last answer has ended. ``progress`` is told how many more requests have come."""
        events, every = self._events, 10_000
        for request, arrival in enumerate(self._arrivals):
            while events and events[0][0] <= arrival:
                self._event()
            speculative = self._kinds[request] == _SPECULATIVE
            self._begin(request, arrival, (1, 0) if speculative else (0,))
            if request % every == every - 1:
                progress(every)
        while events:
            self._event()
        progress(len(self._arrivals) % every)
        return self._course()

    def _begin(self, request: int, time: float, order: Sequence[int]) -> None:
        """On the first of these arms that has room; refused where none has."""
        for arm in order:
            replica = self._choice[arm].choose()
            if replica is None:
                continue
            replica.advance(time, self._horizon)
            if len(replica.running) < self._arms[arm].slots:
                self._run(replica, request)
            else:
                replica.waiting.append(request)
            if self._stage[request] == _FIRST:
                self._began_on[request] = arm
            self._moved(replica)
            return

    def _run(self, replica: _Replica, request: int) -> None:
        """Give it a slot."""
        work = self._arms[replica.arm].curve.prompt_work
        if self._stage[request] == _CONTINUED:
            work += self._tokens[request] - self._standard_first
        else:
            work += 1.0
        heapq.heappush(replica.running, (replica.clock + work, request))

    def _event(self) -> None:
        """The next thing that happens on one server: a first token is there, or a leg is over."""
        time, stamp, replica = heapq.heappop(self._events)
        if stamp != replica.stamp:
            return  # something came between
        replica.advance(time, self._horizon)
        replica.clock, request = replica.running[0]  # it is that, but for rounding
        if self._stage[request] == _FIRST:
            self._first[request] = time - self._arrivals[request]
            self._stage[request] = _REST
            rest = self._leg(request) - 1.0
            if rest > 0:
                heapq.heapreplace(replica.running, (replica.clock + rest, request))
                self._moved(replica)
                return
        heapq.heappop(replica.running)
        if replica.waiting:
            self._run(replica, replica.waiting.popleft())
        self._moved(replica)
        self._leave(replica, request, time)

    def _leg(self, request: int) -> float:
        """Tokens that the first arm writes."""
        tokens = self._tokens[request]
        if self._kinds[request] != _HYBRID or not self._arms[1].replicas:
            return tokens
        return min(tokens, self._standard_first)

    def _leave(self, replica: _Replica, request: int, time: float) -> None:
        """It is at its end, or goes over to the other arm."""
        if self._stage[request] == _REST and self._leg(request) < self._tokens[request]:
            self._stage[request] = _CONTINUED
            self._begin(request, time, (1, 0))
            return
        self._total[request] = time - self._arrivals[request]
        self._ended_on[request] = replica.arm

    def _moved(self, replica: _Replica) -> None:
        """What it does has changed: plan its next event, and where it stands in the choice."""
        self._choice[replica.arm].moved(replica)
        replica.stamp = next(self._stamps)
        if replica.running:
            ahead = max(0.0, replica.running[0][0] - replica.clock)
            time = replica.since + ahead / replica.shares[len(replica.running)]
            heapq.heappush(self._events, (time, replica.stamp, replica))

    def _course(self) -> Course:
        names = (STANDARD, SPECULATIVE)
        seconds = self._horizon or 1.0
        return Course(
            first=np.array(self._first),
            total=np.array(self._total),
            began_on=np.array(self._began_on, dtype=np.int8),
            ended_on=np.array(self._ended_on, dtype=np.int8),
            utilisation={
                name: sum(r.busy for r in replicas) / (len(replicas) * arm.slots * seconds)
                for name, replicas, arm in zip(names, self._replicas, self._arms, strict=True)
                if replicas
            },
            in_system=sum(r.held for replicas in self._replicas for r in replicas) / seconds,
        )


def _shares(arm: Arm) -> list[float]:
    """Tokens a second of each of 0 to ``slots`` answers at once."""
    return [rate / max(n, 1) for n, rate in enumerate(arm.curve.rates(arm.slots))]


def simulate(
    standard: Arm,
    speculative: Arm,
    traffic: Traffic,
    progress: Callable[[int], object] = lambda _: None,
) -> Course:
    """Send the traffic to the arms, each request to the server that has the least to do.

    A speculative request that its arm has no room for goes to the standard arm; one that is banned
    or standard never goes to the speculative one. ``progress`` hears of requests that have come.
    """
    return _Simulation((standard, speculative), traffic).run(progress)
