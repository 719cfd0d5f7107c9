"""`PolicyKeeper`: brings another policy into force, from its files or from an administrator.

Whatever brings it, the order is the same: valid, tested, recorded, swapped. What fails leaves the
policy in force as it was, and is said by the readiness check, a metric and the log.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from gateway.audit.base import ChangeLog, Versions
from gateway.audit.record import PolicyChange
from gateway.errors import (
    AuditUnavailable,
    ConfigError,
    Conflict,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
)
from gateway.log import Log
from gateway.routing import files
from gateway.routing.active import ActivePolicy
from gateway.routing.policy import Policy
from gateway.routing.vetting import Vetting
from gateway.telemetry import Telemetry

Source = Literal["start", "file", "signal", "api", "rollback"]
_MAX_SHOWN = 5


class PolicyKeeper:
    """One policy path, and the reference to what is in force."""

    def __init__(
        self,
        path: Path,
        active: ActivePolicy,
        *,
        snapshot: files.Snapshot,
        vetting: Vetting,
        obeyable: Callable[[Policy], None],
        changes: ChangeLog,
        versions: Versions,
        telemetry: Telemetry,
        log: Log,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``snapshot`` is what the files held when the policy in ``active`` was read from them.

        ``obeyable`` raises ConfigError for a policy that a backend cannot obey; it runs on the loop.
        """
        self._path = path
        self._active = active
        self._vetting = vetting
        self._obeyable = obeyable
        self._changes = changes
        self._versions = versions
        self._telemetry = telemetry
        self._log = log
        self._clock = clock
        self._changing = asyncio.Lock()
        self._in_force = snapshot.contents
        self._tried = snapshot.fingerprint
        """What the files were like at the last attempt; empty where it should be made again."""

    @property
    def active(self) -> ActivePolicy:
        """What is in force."""
        return self._active

    async def changes(self) -> Sequence[PolicyChange]:
        """The last hundred changes, newest first."""
        return await self._versions.changes()

    async def version(self, policy_hash: str) -> PolicyChange:
        """The last change that brought the policy with this hash into force. Raises NotFound."""
        change = await self._versions.version(policy_hash)
        if change is None:
            raise NotFound(f"No policy with the hash {policy_hash} was ever in force here.")
        return change

    async def start(self) -> None:
        """Record the policy that the gateway starts with, unless the log ended with it."""
        policy, last = self._active.current, await self._versions.changes(limit=1)
        previous_hash = last[0].policy_hash if last else None
        self._telemetry.set_policy(policy.name, policy.hash)
        self._telemetry.policy_reloaded(self._active.warning is None)
        if policy.hash == previous_hash and last[0].files == files.texts(self._in_force):
            return
        try:
            await self._record(policy, self._in_force, "start", previous=previous_hash)
        except AuditUnavailable as error:
            self._log.error("policy_change_not_recorded", error=error.message)

    async def watch(self, seconds: float) -> None:
        """Look at the files every so many ``seconds``; a change counts once it has settled.

        Ends only when it is cancelled, or at once for 0 seconds.
        """
        if not seconds:
            return
        last = self._tried
        while True:
            await asyncio.sleep(seconds)
            try:
                now = await asyncio.to_thread(files.fingerprint, self._path)
            except Exception as error:  # noqa: BLE001 - said, and the watching goes on
                self._failed(f"{type(error).__name__}: {error}")
                continue
            if now == last and now != self._tried:
                await self.reload("file")
            last = now

    async def reload(self, source: Source) -> bool:
        """Bring what the files hold into force. False when it is not fit; never raises."""
        async with self._changing:
            try:
                self._tried = await asyncio.to_thread(files.fingerprint, self._path)
                vet = partial(self._vetting.vet, self._path)
                policy, snapshot = await asyncio.to_thread(files.settled, self._path, vet)
                self._tried = snapshot.fingerprint
                self._obeyable(policy)
                if snapshot.contents != self._in_force:
                    await self._record(policy, snapshot.contents, source)
            except ConfigError as error:
                self._failed(summary(error))
                return False
            except AuditUnavailable as error:
                self._tried = ""
                self._failed(f"the change cannot be recorded: {error.message}")
                return False
            except Exception as error:  # noqa: BLE001 - said, and the watching goes on
                self._tried = ""
                self._failed(f"{type(error).__name__}: {error}")
                return False
            self._swap(policy, snapshot.contents, source)
            return True

    async def read(self, text: str) -> Policy:
        """A candidate, valid but not tested. Raises ConfigError, Conflict for a folder of files."""
        self._refuse_set()
        return await asyncio.to_thread(self._vetting.load, self._path, text)

    async def check(self, texts: Mapping[str, str | None]) -> Policy:
        """The policy that `apply` would bring into force. Raises ConfigError and Conflict."""
        self._refuse_set()
        there = await asyncio.to_thread(files.read, self._path)
        return await self._fit(self._whole(there.contents, texts))

    async def apply(
        self,
        texts: Mapping[str, str | None],
        *,
        replaces: str,
        by: str,
        source: Source = "api",
    ) -> Policy:
        """Write ``texts`` to the policy's files and bring them into force.

        ``texts`` has the keys ``policy``, ``tests`` and ``proofs``; what is None stays as it is.
        ``replaces`` is the hash of the policy that the administrator saw.
        Raises PreconditionFailed when another is in force, Conflict when the files cannot be
        replaced, ConfigError when the policy is not fit, AuditUnavailable.
        """
        self._refuse_set()
        async with self._changing:
            self._expect(replaces)
            await self._refuse_unseen()
            before = self._in_force
            whole = self._whole(before, texts)
            policy = await self._fit(whole)
            await self._refuse_unseen()  # proofs may have taken a while
            try:
                await asyncio.to_thread(files.write, self._path, whole)
            except OSError as error:
                raise Conflict(
                    f"The policy file cannot be written ({error.strerror or error}); "
                    "change it where it comes from."
                ) from error
            try:
                if whole != before:
                    await self._record(policy, whole, source, by=by)
            except BaseException:
                if (await asyncio.to_thread(files.read, self._path)).contents == whole:
                    await asyncio.to_thread(files.write, self._path, before)
                raise
            # What was recorded comes into force; a later edit is found by the next look.
            now = await asyncio.to_thread(files.read, self._path)
            self._tried = now.fingerprint if now.contents == whole else ""
            self._swap(policy, whole, source, by=by)
            return policy

    async def rollback(self, policy_hash: str, *, replaces: str, by: str) -> Policy:
        """Bring an earlier version into force again, with the tests and proofs that it had.

        Raises NotFound for a hash that was never in force, and what `apply` raises.
        """
        self._refuse_set()
        version = await self.version(policy_hash)
        roles = dict(zip(("policy", "tests", "proofs"), files.names(self._path), strict=True))
        if self._path.name not in version.files:
            raise Conflict("That version was kept under another file name; apply its text instead.")
        texts = {role: version.files.get(path.name, "") for role, path in roles.items()}
        return await self.apply(texts, replaces=replaces, by=by, source="rollback")

    async def _fit(self, contents: Mapping[str, bytes]) -> Policy:
        policy = await asyncio.to_thread(self._vetting.vet_contents, self._path, contents)
        self._obeyable(policy)
        return policy

    def _expect(self, replaces: str) -> None:
        current = self._active.current
        if replaces not in (current.hash, current.version):
            raise PreconditionFailed(
                f"The policy in force is {current.version}, not the one that If-Match names; "
                "look at it, then decide again."
            )

    def _refuse_set(self) -> None:
        if files.is_set(self._path):
            raise Conflict("This policy is a folder of files: change them there.")

    async def _refuse_unseen(self) -> None:
        """Never write over an edit that is not in force: somebody made it, and it would be lost."""
        there = (await asyncio.to_thread(files.read, self._path)).contents
        for name in (path.name for path in files.names(self._path)):
            if there.get(name) != self._in_force.get(name):
                raise Conflict(
                    f"{name} holds an edit that is not in force; wait until it is, or correct it "
                    "or take it back there first."
                )

    def _whole(
        self, there: Mapping[str, bytes], texts: Mapping[str, str | None]
    ) -> dict[str, bytes]:
        """All files as they would be: ``texts``, and what is ``there`` where they have None."""
        policy, tests, proofs = (path.name for path in files.names(self._path))
        named = {
            policy: texts.get("policy"),
            tests: texts.get("tests"),
            proofs: texts.get("proofs"),
        }
        if not named[policy]:
            raise InvalidRequest("'policy' must be the text of a policy.", param="policy")
        given = {name: text.encode() for name, text in named.items() if text is not None}
        return {name: data for name, data in {**there, **given}.items() if data}

    async def _record(
        self,
        policy: Policy,
        contents: Mapping[str, bytes],
        source: Source,
        *,
        by: str = "",
        previous: str | None = None,
    ) -> None:
        await self._changes.append_change(
            PolicyChange(
                changed_at=self._clock(),
                policy=policy.name,
                policy_hash=policy.hash,
                previous_hash=previous if source == "start" else self._active.current.hash,
                source=source,
                by=by,
                files=files.texts(contents),
            )
        )

    def _swap(
        self, policy: Policy, contents: dict[str, bytes], source: Source, *, by: str = ""
    ) -> None:
        before = self._active.current
        self._active.current = policy
        self._in_force = contents
        self._active.warning = None
        self._telemetry.set_policy(policy.name, policy.hash)
        self._telemetry.policy_reloaded(True)
        self._log.info(
            "policy_in_force",
            policy=policy.name,
            policy_hash=policy.hash,
            previous_hash=before.hash,
            source=source,
            by=by,
        )

    def _failed(self, reason: str) -> None:
        current = self._active.current
        self._active.warning = f"{reason}\nStill in force: {current.name} {current.version}."
        self._telemetry.policy_reloaded(False)
        self._log.error("policy_not_reloaded", error=reason, policy_hash=current.hash)


def summary(error: ConfigError) -> str:
    """The first few problems, a line each."""
    shown = [str(problem) for problem in error.problems[:_MAX_SHOWN]]
    more = len(error.problems) - len(shown)
    return "\n".join([*shown, f"and {more} more"] if more else shown)
