"""The command line: `python -m reproduction`, from the root of a checkout."""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from pushforward.errors import PushforwardError, UsageError

EXPERIMENTS = {
    "toy2d": "every sampler on six densities in the plane (Table 1, Figures 1 and 2)",
    "covertype": "Bayesian logistic regression from minibatches (Table 2, Figure 4)",
    "mnist": "a one-step sampler for an energy model of digits (Table 3, Figures 3, 5)",
}
RESULTS, REPORT = Path("runs/results"), Path("runs/report")
# The small generator that the third experiment trained, for `digits`.
DIGITS = Path(__file__).parent / "mnist" / "digits.safetensors"
INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    """Refuses what it cannot parse in one sentence."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message[:1].upper()}{message[1:]}; see {self.prog} --help.")


def parser() -> argparse.ArgumentParser:
    """What can be typed."""
    made = _Parser(
        prog="python -m reproduction",
        description="The paper's tables and figures, made again.",
    )
    commands = made.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, about in EXPERIMENTS.items():
        command = commands.add_parser(
            name,
            help=about,
            description=f"Experiment {name}: {about}. What a result file in the "
            "directory already holds is not run again: an interrupted experiment "
            "continues where it stopped.",
        )
        _add_options(command)
    report = commands.add_parser("report", help="render the pages of result files")
    report.add_argument(
        "--results", type=Path, default=RESULTS, help="directory of the result files"
    )
    report.add_argument(
        "--out", type=Path, default=REPORT, help="directory for pages and figures"
    )
    digits = commands.add_parser("digits", help="draw a page of digits")
    digits.add_argument(
        "sampler",
        nargs="?",
        type=Path,
        default=DIGITS,
        help="a file or run of an image sampler, instead of the one kept here",
    )
    digits.add_argument("-n", type=int, default=100, help="how many images")
    digits.add_argument("--out", type=Path, default=Path("digits.png"))
    digits.add_argument("--seed", type=int, default=1, help="random seed")
    return made


def _add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--scale",
        choices=("smoke", "cpu", "full"),
        default="cpu",
        help="smoke: minutes; cpu: small enough for two cores; full: for a GPU",
    )
    command.add_argument(
        "--out", type=Path, default=RESULTS, help="directory for the result file"
    )
    command.add_argument(
        "--methods",
        nargs="+",
        default=(),
        metavar="METHOD",
        help="run only these, such as: dft kl ld, or one setting: 'dft|paper'; "
        "for mnist also: classifier energy langevin",
    )
    command.add_argument(
        "--merge",
        nargs="+",
        type=Path,
        default=(),
        metavar="FILE",
        help="adopt the finished cells of these result files first",
    )
    command.add_argument("--seed", type=int, default=0, help="random seed")
    command.add_argument(
        "--remark",
        default="",
        metavar="TEXT",
        help="stored with the cells that this call finishes and shown on the page",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        _run(parser().parse_args(words or ["--help"]))
    except PushforwardError as error:
        if os.environ.get("PUSHFORWARD_TRACEBACK"):
            raise
        print(f"reproduction: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("reproduction: interrupted.", file=sys.stderr)
        return INTERRUPTED
    return 0


def _run(arguments: argparse.Namespace) -> None:
    match arguments.command:
        case "report":
            _report(arguments)
        case "digits":
            _digits(arguments)
        case name:
            _experiment(name, arguments)


def _require_seed(seed: int) -> None:
    if not 0 <= seed < 2**32:
        raise UsageError(f"--seed must lie between 0 and 2^32 - 1, and is {seed}.")


def _experiment(name: str, arguments: argparse.Namespace) -> None:
    _require_seed(arguments.seed)
    experiment: Any = importlib.import_module(f"reproduction.{name}.run")
    experiment.reproduce(
        arguments.out,
        arguments.scale,
        only=arguments.methods,
        merge=arguments.merge,
        seed=arguments.seed,
        remark=arguments.remark,
        say=lambda line: print(line, flush=True),
    )
    print(f"Results:  {arguments.out / f'{name}.json'}")
    print(f"The page: python -m reproduction report --results {arguments.out}")


def _report(arguments: argparse.Namespace) -> None:
    from reproduction.report import render

    for path in render(arguments.results, arguments.out):
        print(path)


def _digits(arguments: argparse.Namespace) -> None:
    _require_seed(arguments.seed)
    import jax

    import pushforward as pf
    from reproduction.mnist.images import draw_page

    key = jax.random.key(arguments.seed)
    draw_page(key, pf.load(arguments.sampler), arguments.n, arguments.out)
    print(f"{arguments.n:,} draws are in {arguments.out}.")


if __name__ == "__main__":
    sys.exit(main())
