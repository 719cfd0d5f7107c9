"""`Watch`: looks at every replica again and again, and says what has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import httpx
from prometheus_client import CollectorRegistry, Counter, Gauge

from gateway.backends.openai.features import PROBED
from gateway.backends.openai.probing import probe
from gateway.backends.openai.replica import SPECULATIVE, Arm, Replica
from gateway.log import Log

_MOST_LOOKS = 64
"""No more of them pass before an arm is probed again whose answers were missing."""
STATES = ("up", "down", "breaker_open", "attestation_failed", "unknown")


class Watch:
    """The replicas of one backend. Until it is started it says nothing."""

    def __init__(
        self,
        name: str,
        model: str,
        arms: Mapping[str, Arm],
        client: httpx.AsyncClient,
        *,
        seconds: float,
        probes: bool,
    ) -> None:
        self._name, self._model, self._arms, self._client = name, model, arms, client
        self._seconds, self._may_probe = seconds, probes
        self._states: dict[Replica, str] = {}
        self._probes_of = {name: _Probes() for name in arms}
        self._log: Log | None = None
        self._gauge: Gauge | None = None
        self._alarms: Counter | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, log: Log, registry: CollectorRegistry) -> None:
        """Look once at all, then go on looking. Probes are waited for as long as between two looks."""
        self._log = log
        self._gauge, self._alarms = metrics(registry)
        for arm in self._arms.values():
            # An alert on a rise needs the zero before it.
            self._alarms.labels(self._name, arm.name)
        await self.look()
        if tasks := self._probing():
            await asyncio.wait(tasks, timeout=self._seconds)
        self._task = asyncio.create_task(self._go_on(), name=f"watch of {self._name}")

    async def look(self) -> None:
        """Look at every replica, and begin to probe each arm that has come up since it was probed."""
        every = [replica for arm in self._arms.values() for replica in arm.replicas]
        await asyncio.gather(*(replica.look(self._client) for replica in every))
        for arm in self._arms.values():
            for replica in arm.replicas:
                self.note(replica)
            self._probe(arm)
        self._show()

    def note(self, replica: Replica, detail: str = "") -> None:
        """Say what has become of a replica, if anything has."""
        before, now = self._states.get(replica), replica.state
        if before == now:
            return
        self._states[replica] = now
        arm = next(arm for arm in self._arms.values() if replica in arm.replicas)
        if not detail and replica.finding is not None:
            detail = replica.finding.detail
        if now == "attestation_failed" and self._alarms is not None:
            self._alarms.labels(self._name, arm.name).inc()
        if self._log is None or (before is None and now == "up"):
            return
        facts = {"backend": self._name, "arm": arm.name, "replica": replica.url}
        if now == "attestation_failed":
            self._log.error("upstream_attestation_failed", detail=detail or None, **facts)
        elif now == "up":
            self._log.info("upstream_usable", **facts)
        else:
            self._log.warning("upstream_not_usable", state=now, detail=detail or None, **facts)

    def warnings(self) -> tuple[str, ...]:
        """What an operator should look at."""
        return tuple(self._warnings())

    async def aclose(self) -> None:
        """Look no more."""
        tasks = self._probing() + ([] if self._task is None else [self._task])
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _warnings(self) -> list[str]:
        found = []
        for arm in self._arms.values():
            for replica in arm.replicas:
                where = f"{self._name}: {arm.name} {replica.url}"
                if replica.broke_its_promise:
                    found.append(f"{where} speculates and is not used (attestation_failed)")
                elif replica.state in ("down", "breaker_open"):
                    found.append(f"{where} is {replica.state.replace('_', ' ')}")
                elif arm.name == SPECULATIVE and _plainly_slow(replica):
                    found.append(f"{where} does not speculate")
        return found

    def _probing(self) -> list[asyncio.Task[None]]:
        return [each.task for each in self._probes_of.values() if each.task is not None]

    def _probe(self, arm: Arm) -> None:
        """Begin to probe the arm where that is due: a server that is slow holds up no look."""
        up = next((replica for replica in arm.replicas if replica.usable and replica.is_up), None)
        probes = self._probes_of[arm.name]
        if up is None:
            probes.forget()
        elif self._may_probe and probes.are_due():
            probes.task = asyncio.create_task(self._ask(arm, up), name=f"probes of {arm.name}")

    async def _ask(self, arm: Arm, replica: Replica) -> None:
        probes = self._probes_of[arm.name]
        try:
            seen, complete = await probe(self._client, replica.place, self._model, arm.key)
            arm.probed = seen if complete else {**arm.probed, **seen}
            probes.note(complete)
        finally:
            probes.task = None
        if self._log is not None and (lacks := sorted(set(PROBED) - arm.honours)):
            self._log.info("upstream_lacks", backend=self._name, arm=arm.name, features=lacks)

    async def _go_on(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            try:
                await self.look()
            except Exception:  # noqa: BLE001 - the next look may do better; nobody awaits this
                if self._log is not None:
                    self._log.exception("upstream_not_looked_at", backend=self._name)

    def _show(self) -> None:
        if self._gauge is None:
            return
        for arm in self._arms.values():
            states = [replica.state for replica in arm.replicas]
            for state in STATES:
                self._gauge.labels(self._name, arm.name, state).set(states.count(state))


class _Probes:
    """When one arm is probed: once, when it comes up; again, ever later, while answers are missing."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.forget()

    def forget(self) -> None:
        """The arm is down: what comes up may be something else."""
        self._done, self._tries, self._wait = False, 0, 0

    def are_due(self) -> bool:
        """Asked at each look."""
        if self._done or self.task is not None:
            return False
        self._wait -= 1
        return self._wait < 0

    def note(self, complete: bool) -> None:
        """What one round has come to."""
        self._done, self._tries = complete, self._tries + 1
        self._wait = min(1 << self._tries, _MOST_LOOKS)


def _plainly_slow(replica: Replica) -> bool:
    found = replica.finding
    if found is None or not found.up or not found.attests:
        return False
    return found.drafted is None and found.speculates is not True


def metrics(registry: CollectorRegistry) -> tuple[Gauge, Counter]:
    """Those of all such backends together; the first one makes them."""
    known = getattr(registry, "_names_to_collectors", {})
    gauge = known.get("draftgate_upstream_replicas") or Gauge(
        "draftgate_upstream_replicas",
        "Servers of an arm by what is known of them.",
        ("backend", "arm", "state"),
        registry=registry,
    )
    alarms = known.get("draftgate_upstream_attestation_failures_total") or Counter(
        "draftgate_upstream_attestation_failures_total",
        "Times that a server of a standard arm was found speculating. Alarm on any.",
        ("backend", "arm"),
        registry=registry,
    )
    return gauge, alarms
