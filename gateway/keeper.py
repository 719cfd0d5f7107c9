"""`PolicyKeeper`: brings another policy into force, from its files or from an administrator.

Whatever brings it, the order is the same: valid, tested, recorded, swapped. What fails leaves the
policy in force as it was, and is said by the readiness check, a metric and the log.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
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
        vetting: Vetting,
        obeyable: Callable[[Policy], None],
        changes: ChangeLog,
        versions: Versions,
        telemetry: Telemetry,
        log: Log,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``obeyable`` raises ConfigError for a policy that a backend cannot obey; it runs on the loop."""
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
        self._tried = files.fingerprint(path)

    @property
    def active(self) -> ActivePolicy:
        """What is in force."""
        return self._active

    @property
    def versions(self) -> Versions:
        """What was in force before."""
        return self._versions

    async def start(self) -> None:
        """Record the policy that the gateway starts with, unless the log ended with it."""
        policy, last = self._active.current, await self._versions.changes(limit=1)
        previous_hash = last[0].policy_hash if last else None
        self._telemetry.set_policy(policy.name, policy.hash)
        self._telemetry.policy_reloaded(self._active.warning is None)
        if policy.hash == previous_hash:
            return
        texts = await asyncio.to_thread(files.read, self._path)
        try:
            await self._record(policy, texts, "start", previous=previous_hash)
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
            now = await asyncio.to_thread(files.fingerprint, self._path)
            if now == last and now != self._tried:
                await self.reload("file")
            last = now

    async def reload(self, source: Source) -> bool:
        """Bring what the files hold into force. False when it is not fit; never raises."""
        async with self._changing:
            self._tried = await asyncio.to_thread(files.fingerprint, self._path)
            try:
                policy = await asyncio.to_thread(self._vetting.vet, self._path)
                self._obeyable(policy)
                texts = await asyncio.to_thread(files.read, self._path)
                # A file may have changed since; what is recorded is what comes into force.
                folder = Path(policy.path).parent
                for file in policy.files:
                    texts[Path(file.path).relative_to(folder).as_posix()] = file.text
                if policy.hash != self._active.current.hash:
                    await self._record(policy, texts, source)
            except ConfigError as error:
                self._failed(summary(error))
                return False
            except AuditUnavailable as error:
                self._failed(f"the change cannot be recorded: {error.message}")
                return False
            except Exception as error:  # noqa: BLE001 - said, and the watching goes on
                self._failed(f"{type(error).__name__}: {error}")
                return False
            self._swap(policy, source)
            return True

    async def read(self, text: str) -> Policy:
        """A candidate, valid but not tested. Raises ConfigError."""
        return await asyncio.to_thread(self._vetting.read, self._path, text)

    async def check(self, texts: Mapping[str, str | None]) -> Policy:
        """The policy that `apply` would bring into force. Raises ConfigError."""
        return await self._fit(await self._whole(texts))

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
        async with self._changing:
            self._expect(replaces)
            await self._refuse_unseen()
            whole = await self._whole(texts)
            policy = await self._fit(whole)
            before = await asyncio.to_thread(files.read, self._path)
            try:
                await asyncio.to_thread(files.write, self._path, whole)
            except OSError as error:
                raise Conflict(
                    f"The policy file cannot be written ({error.strerror or error}); "
                    "change it where it comes from."
                ) from error
            try:
                if policy.hash != self._active.current.hash:
                    await self._record(policy, whole, source, by=by)
                policy = await asyncio.to_thread(self._vetting.load, self._path)
            except BaseException:
                await asyncio.to_thread(files.write, self._path, before)
                raise
            self._tried = await asyncio.to_thread(files.fingerprint, self._path)
            self._swap(policy, source, by=by)
            return policy

    async def rollback(self, policy_hash: str, *, replaces: str, by: str) -> Policy:
        """Bring an earlier version into force again, with the tests and proofs that it had.

        Raises NotFound for a hash that was never in force, and what `apply` raises.
        """
        version = await self._versions.version(policy_hash)
        if version is None:
            raise NotFound(f"No policy with the hash {policy_hash} was ever in force here.")
        roles = dict(zip(("policy", "tests", "proofs"), files.names(self._path), strict=True))
        if self._path.name not in version.files:
            raise Conflict("That version was kept under another file name; apply its text instead.")
        texts = {role: version.files.get(path.name, "") for role, path in roles.items()}
        return await self.apply(texts, replaces=replaces, by=by, source="rollback")

    async def _fit(self, texts: Mapping[str, str]) -> Policy:
        policy = await asyncio.to_thread(self._vetting.vet_texts, self._path, texts)
        self._obeyable(policy)
        return policy

    def _expect(self, replaces: str) -> None:
        current = self._active.current
        if replaces not in (current.hash, current.version):
            raise PreconditionFailed(
                f"The policy in force is {current.version}, not the one that If-Match names; "
                "look at it, then decide again."
            )

    async def _refuse_unseen(self) -> None:
        """Never write over an edit that is not in force: somebody made it, and it would be lost."""
        if files.is_set(self._path):
            raise Conflict("This policy is a folder of files; change them there.")
        texts = await asyncio.to_thread(files.read, self._path)
        if texts[self._path.name] != self._active.current.text:
            raise Conflict(
                "The policy file holds an edit that is not in force; correct it or take it back "
                "there first."
            )

    async def _whole(self, texts: Mapping[str, str | None]) -> dict[str, str]:
        """All files as they would be: ``texts``, and what is there where it has None."""
        there = await asyncio.to_thread(files.read, self._path)
        policy, tests, proofs = (path.name for path in files.names(self._path))
        named = {
            policy: texts.get("policy"),
            tests: texts.get("tests"),
            proofs: texts.get("proofs"),
        }
        if not named[policy]:
            raise InvalidRequest("'policy' must be the text of a policy.", param="policy")
        whole = {**there, **{name: text for name, text in named.items() if text is not None}}
        return {name: text for name, text in whole.items() if text}

    async def _record(
        self,
        policy: Policy,
        texts: Mapping[str, str],
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
                files=texts,
            )
        )

    def _swap(self, policy: Policy, source: Source, *, by: str = "") -> None:
        before = self._active.current
        self._active.current = policy
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
