"""How a training ended, and what it leaves."""

import dataclasses
import enum
from pathlib import Path
from typing import Any

from jaxtyping import PRNGKeyArray

from pushforward import _html
from pushforward.sampler import Sampler
from pushforward.targets.base import AbstractTarget
from pushforward.training.history import History


class Status(enum.Enum):
    """How a training ended. The values are sentences; `str` gives them."""

    FINISHED = "Training finished."
    INTERRUPTED = "Ctrl-C stopped the training."
    STOPPED = "The callback stopped the training."
    NONFINITE = "Training stopped because its steps were not finite."
    FROZEN = "This seed was frozen because its steps were not finite."
    NONFINITE_DRAWS = "Training ended with draws that are not finite."

    def __str__(self) -> str:
        return self.value


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class AbstractTrained:
    """What every training leaves; `print` shows it in a few lines.

    Attributes:
        status: how training ended.
        history: a table of what was measured during training.
        config: plain names and numbers that say exactly what was run.
        steps: how many steps were made.
        planned: how many steps were planned.
        nonfinite_steps: how many of the steps were not finite and were skipped.
        seconds: how long training took, compilation included.
        reason: what is wrong where training broke down and what to do, if known.
        out: the directory of the run, where it has one.
    """

    status: Status
    history: History
    config: dict[str, Any]
    steps: int
    planned: int
    nonfinite_steps: int
    seconds: float
    reason: str | None = None
    out: Path | None = None

    @property
    def finished(self) -> bool:
        """Whether training made all its steps, or its callback ended it on purpose."""
        return self.status in (Status.FINISHED, Status.STOPPED)

    @property
    def message(self) -> str:
        """The status with the particulars of this run."""
        match self.status:
            case Status.FINISHED:
                made = _counted(self.steps, "step")
                text = f"Finished {made} in {self.seconds:.0f} s."
                if self.steps < self.planned:
                    text = (
                        f"Finished after {self.steps} of at most {self.planned} steps "
                        f"in {self.seconds:.0f} s: more would not have helped."
                    )
            case Status.STOPPED:
                text = (
                    f"The callback stopped the training after {self.steps} of "
                    f"{self.planned} steps ({self.seconds:.0f} s)."
                )
            case Status.INTERRUPTED:
                return (
                    f"Stopped by Ctrl-C after {self.steps} of {self.planned} steps; "
                    f"{self._kept}"
                )
            case Status.NONFINITE | Status.FROZEN:
                which = "Training" if self.status is Status.NONFINITE else "This seed"
                reason = f"; {self.reason}" if self.reason else ""
                return (
                    f"{which} stopped after {self.steps} of {self.planned} steps: the "
                    f"last of them were not finite{reason}."
                )
            case Status.NONFINITE_DRAWS:
                return (
                    f"Training ended after {self.steps} of {self.planned} steps, but "
                    f"{self.reason}."
                )
        return text + _skipping(self.nonfinite_steps) + self._remarks

    @property
    def _remarks(self) -> str:
        """What else is to be said of a training that ended well."""
        return ""

    @property
    def _kept(self) -> str:
        """What an interrupted run leaves, and how to go on."""
        if self.out is None:
            return (
                "what it had learnt by then is returned, but only a run with a "
                "directory (out=) can be continued."
            )
        return (
            f"what it had learnt by then is in {self.out}: to continue, repeat the "
            "call with resume=True (--resume)."
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.message}>"

    @property
    def _subject(self) -> str:
        """What was trained on."""
        return self.config["target"]["kind"]

    def __str__(self) -> str:
        method = self.config["method"]
        lines = [self.message]
        lines.append(f"  method   {method['name']}")
        lines.append(f"  target   {self._subject}")
        rows = f"  history  {_counted(len(self.history), 'row')}"
        if last := self.history.last:
            rows += "; at last " + ", ".join(f"{k} {v:.4g}" for k, v in last)
        lines.append(rows)
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Trained(AbstractTrained):
    """What `train` returns.

    Attributes:
        result: what was learnt.
    """

    result: Any


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Fit(AbstractTrained):
    """What `fit` returns.

    Attributes:
        sampler: the trained sampler.
        evaluations: how often the target was evaluated, the initialisation included,
            and the draws at the end.
        doubts: what may be wrong, and may be right: a sentence for each. The density is
            zero at points, or does not seem to fall; or exploration or the last review
            of the training say that the sampler may be far from the target.
        outside: the share of draws of the trained sampler at which the log density is
            not a finite number, so that the density counts as zero. None where it was
            not computed.
        remark: what is to be said of some of the steps: how many trained a score or a
            critic alone.
        target: what the sampler was trained for.
    """

    sampler: Sampler
    evaluations: int
    doubts: tuple[str, ...] = ()
    outside: float | None = None
    remark: str = ""
    target: AbstractTarget | None = None

    def report(
        self,
        path: str | Path,
        *,
        key: PRNGKeyArray | None = None,
        reference: Any = None,
        n: int = 2000,
        max_evaluations: int | float | None = None,
        title: str | None = None,
    ) -> Path:
        """Writes one page about this fit; see `pushforward.report`.

        Args:
            path: the file, whose name ends in `.html`.
            key: random key; None is one that follows from that of the fit.
            reference: as for `pushforward.report`.
            n: as for `pushforward.report`.
            max_evaluations: as for `pushforward.report`.
            title: as for `pushforward.report`.

        Returns:
            `path`.
        """
        from pushforward.reporting.api import report_of_fit

        return report_of_fit(
            self,
            path,
            key=key,
            reference=reference,
            n=n,
            max_evaluations=max_evaluations,
            title=title,
        )

    @property
    def _subject(self) -> str:
        about = self.config["target"]
        many = _counted(about["dim"], "dimension")
        return f"{about['kind']} in {many}, evaluated {self.evaluations:,} times"

    @property
    def _remarks(self) -> str:
        text = f" {self.remark}" if self.remark else ""
        text += self._about_the_budget
        if self.outside:
            text += f" At {self.outside:.2%} of the draws the density is zero."
        if self.doubts:
            one = len(self.doubts) == 1
            which = "a doubt" if one else f"{len(self.doubts)} doubts"
            text += f" There {'is' if one else 'are'} {which}, in .doubts."
        return text

    @property
    def _about_the_budget(self) -> str:
        """What a bound of the evaluations did not pay for."""
        most, wanted = self.config.get("max_evaluations"), self.config["steps"]
        if most is None or (self.planned == wanted and self.evaluations <= 1.1 * most):
            return ""
        steps = _counted(self.planned, "step")
        text = f" max_evaluations={most:,} paid for {steps} of {wanted:,}"
        if self.evaluations > 1.1 * most:
            text = (
                f" max_evaluations={most:,} did not pay for the least that this method "
                f"does: it took {self.evaluations:,} with {steps} of {wanted:,}"
            )
        return text + "."

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        rows = [
            ("method", self.config["method"]["name"]),
            ("target", self._subject),
            *((name, f"{value:.4g}") for name, value in self.history.last),
            ("history", f"{_counted(len(self.history), 'row')}, in .history"),
            *(("symmetry", s) for s in [self.config["target"].get("symmetry")] if s),
            *(("doubt", doubt) for doubt in self.doubts),
        ]
        name = self.status.name.lower().replace("_", " ")
        return _html.heading(name, self.message) + _html.table(rows)

    def __str__(self) -> str:
        lines = [super().__str__()]
        if (symmetry := self.config["target"].get("symmetry")) is not None:
            lines.append(f"  symmetry {symmetry}")
        if self.doubts:
            more = len(self.doubts) - 1
            lines.append(f"  doubt    {self.doubts[0]}{f' ({more} more)' * (more > 0)}")
        return "\n".join(lines)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _skipping(count: int) -> str:
    if count == 0:
        return ""
    if count == 1:
        return " 1 step was not finite and was skipped."
    return f" {count} steps were not finite and were skipped."
