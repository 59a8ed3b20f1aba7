"""What can be typed on the command line, as plain data."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg, subcommand
from tyro.constructors import PrimitiveConstructorSpec


def _whole_number(words: list[str]) -> int:
    try:
        return int(words[0])
    except ValueError:
        raise ValueError(f"{words[0]!r} is not a whole number.") from None


# A number that may be left out would otherwise be refused as "{None}|INT".
WHOLE = PrimitiveConstructorSpec[int | None](
    nargs=1,
    metavar="N",
    instance_from_str=_whole_number,
    is_instance=lambda value: value is None or isinstance(value, int),
    str_from_instance=lambda value: [str(value)],
)

Run = Annotated[Positional[Path], arg(metavar="RUN")]
Seed = Annotated[int, WHOLE]
Count = Annotated[int, WHOLE, arg(aliases=("-n",))]
# Where nothing is the default, the help says in words what then happens.
Dim = Annotated[int | None, WHOLE, arg(metavar="D", help_behavior_hint="")]
Number = Annotated[int | None, WHOLE, arg(help_behavior_hint="")]
Flag = Annotated[bool, arg(help_behavior_hint="")]


@dataclasses.dataclass(frozen=True)
class Demo:
    """Train a sampler for a ring in the plane, check it, and draw a picture."""

    out: Path = Path("demo")
    """Directory for the sampler and the picture."""


@dataclasses.dataclass(frozen=True)
class Fit:
    """Train a sampler for a built-in target or for a density of your own.

    Your own is my_model.py:log_density or module:log_density, with --dim; the name may
    also be that of a Target, or of a function without arguments that makes one.
    """

    target: Annotated[Positional[str], arg(metavar="TARGET")]
    """A name of `pushforward targets`, or my_model.py:log_density."""
    out: Path
    """Directory for the run, which can be resumed."""
    dim: Dim = None
    """The number of coordinates of your own log density."""
    steps: Number = None
    """The number of training steps, instead of the method's own."""
    batch_size: Number = None
    """Points per step, instead of the method's own number."""
    max_evaluations: Number = None
    """How often the density may be evaluated. No bound by default."""
    method: Literal[
        "default",
        "adaptive",
        "transport",
        "dft",
        "kl",
        "fisher",
        "critic",
        "ksd",
        "steingan",
        "flow",
        "gaussian",
    ] = "default"
    """How to train; the default works untouched."""
    seed: Seed = 0
    """Random seed."""
    resume: Flag = False
    """Go on with the run in the directory."""
    quiet: Flag = False
    """Say nothing unless something goes wrong."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """Draw from a trained sampler into a .npy, .npz or .csv file."""

    run: Run
    """A run directory, or a file that a sampler was saved to."""
    draws: Annotated[int, WHOLE, arg(aliases=("-n",))]
    """How many draws."""
    out: Annotated[Path, arg(metavar="PATH")]
    """The file for the draws; its ending says the format."""
    seed: Seed = 1
    """Random seed."""
    quiet: Flag = False
    """Say nothing unless something goes wrong."""


@dataclasses.dataclass(frozen=True)
class AbstractJudging:
    """What every command is told that judges a trained sampler."""

    run: Run
    """A run directory, or a file that a sampler was saved to."""
    target: Annotated[str | None, arg(metavar="TARGET", help_behavior_hint="")] = None
    """What it should sample from, where the run does not remember it."""
    dim: Dim = None
    """The number of coordinates of your own log density."""
    trust: Flag = False
    """Run the code that the run names as its density."""
    draws: Count = 2000
    """How many draws to test."""
    max_evaluations: Number = None
    """How many evaluations of the density may be spent. No bound by default."""
    seed: Seed = 2
    """Random seed."""


@dataclasses.dataclass(frozen=True)
class Check(AbstractJudging):
    """Say how far a trained sampler can be trusted.

    The exit status is 0 if it passed, 1 if it failed, and 3 if it is inconclusive.

    A run remembers what it was trained for. Where that is code of somebody's own, it is
    run only with --trust.
    """

    json: Flag = False
    """Print the verdict as JSON."""


@dataclasses.dataclass(frozen=True)
class Report(AbstractJudging):
    """Write one page about a trained sampler, which any browser shows.

    It needs no network; the same numbers are in a JSON file beside it. A built-in
    target is found again by itself; code that a run names is run only with --trust.
    """

    out: Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="")] = None
    """The .html file. By default report.html in the run, or beside the file."""


@dataclasses.dataclass(frozen=True)
class Targets:
    """List the built-in targets."""


Command = (
    Annotated[Demo, subcommand("demo")]
    | Annotated[Fit, subcommand("fit")]
    | Annotated[Sample, subcommand("sample")]
    | Annotated[Check, subcommand("check")]
    | Annotated[Report, subcommand("report")]
    | Annotated[Targets, subcommand("targets")]
)


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Turn a log-density into a sampler that costs one network pass per draw.

    Exit status: 0 done, or passed; 1 the verdict is "failed"; 2 what was asked for
    cannot be done; 3 the verdict is "inconclusive"; 4 a mistake of pushforward's own;
    128 and its number for a signal, such as 130 for Ctrl-C.
    """

    command: Command
    version: Flag = False
    """Print the version and exit."""
