"""What a policy must pass before it comes into force: valid, its tests hold, its proofs too.

Reads files; the clock, the log and the policy in force are its caller's matter.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from gateway.errors import ConfigError, Problem
from gateway.routing import files, proofs, testing
from gateway.routing.policy import Policy, load
from gateway.routing.testing import Classify


class Vetting:
    """Vets policies for one gateway: its backends, and its way to classify text."""

    def __init__(self, *, backends: Collection[str], classify: Classify) -> None:
        self._backends = backends
        self._classify = classify

    def load(self, path: Path, text: str | None = None) -> Policy:
        """The policy that ``path`` holds, or would hold if it had this text.

        Raises ConfigError with every problem.
        """
        return load(path, backends=self._backends, text=text)

    def failures(self, policy: Policy) -> tuple[Problem, ...]:
        """What the policy's own tests find wrong; nothing where it has none.

        Raises ConfigError for a test file that is itself wrong.
        """
        path = files.beside(Path(policy.path), files.TESTS)
        if not path.is_file():
            return ()
        report = testing.run(policy, path, self._classify)
        return tuple(
            Problem(
                f"the case {result.name!r} fails: {'; '.join(result.differences)}",
                path=path,
                hint="change the policy, or what the case expects",
            )
            for result in report.results
            if not result.passed
        )

    def refuted(self, policy: Policy) -> tuple[Problem, ...]:
        """The statements beside the policy that are not true of it; nothing where there are none.

        Raises ConfigError for a file of statements that is wrong, and where one is too large.
        """
        path = files.beside(Path(policy.path), files.PROOFS)
        if not path.is_file():
            return ()
        return tuple(
            Problem(
                f"the statement {verdict.name!r} "
                + ("says nothing" if verdict.counterexample is None else "is not true"),
                path=path,
                hint="`draftgate policy prove` shows a request that is against it",
            )
            for verdict in proofs.run(policy, path, backends=self._backends).verdicts
            if not verdict.proved
        )

    def vet(self, path: Path) -> Policy:
        """The policy in a file, tested and proved. Raises ConfigError with every problem."""
        policy = self.load(path)
        if failures := (*self.failures(policy), *self.refuted(policy)):
            raise ConfigError(failures)
        return policy

    def vet_contents(self, path: Path, contents: Mapping[str, bytes]) -> Policy:
        """The policy that ``path`` would hold if it and its companions had these bytes.

        Raises ConfigError; its problems name the files as they are.
        """
        with TemporaryDirectory(prefix="draftgate-policy-") as folder:
            copy = Path(folder) / path.name
            files.write(copy, contents)
            try:
                policy = self.vet(copy)
            except ConfigError as error:
                raise ConfigError([_moved(problem, path) for problem in error.problems]) from None
        return self.load(path, policy.text)


def _moved(problem: Problem, path: Path) -> Problem:
    return Problem(
        problem.message,
        path=path.with_name(Path(problem.path).name),
        line=problem.line,
        column=problem.column,
        hint=problem.hint,
        source=problem.source,
    )
