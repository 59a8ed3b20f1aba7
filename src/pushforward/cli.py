"""The command line.

Nothing heavy is imported before a command needs it: `--help` and `targets` answer at
once.
"""

import json
import os
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from pushforward import _files
from pushforward._cli_arguments import (
    Arguments,
    Check,
    Command,
    Demo,
    Fit,
    Report,
    Sample,
    Targets,
)
from pushforward._version import __version__
from pushforward.errors import (
    FileError,
    PushforwardError,
    UnfinishedWarning,
    UsageError,
)

if TYPE_CHECKING:
    from pushforward import AbstractTarget, Sampler, Verdict

# 0 is success and 2 a mistake in what was asked for, as is usual.
FAILED, INCONCLUSIVE, INTERRUPTED = 1, 3, 130

# Commands of earlier versions, and what to type instead.
MOVED = {
    "reproduce": "python -m reproduction toy2d, covertype or mnist",
    "report --results": "python -m reproduction report",
    "sample digits": "python -m reproduction digits",
}

DEMO_TARGET = "donut"
# Less than the default: enough for a ring in the plane, and a demo should be short.
DEMO_STEPS = 1800
# So many draws are made to measure the speed.
DEMO_SPEED = 1_000_000


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["--version"]:
        print(f"pushforward {__version__}")
        return 0
    try:
        _require_current(words)
        arguments = _parsed(words or ["--help"])
        with warnings.catch_warnings():
            # Each command that trains prints that sentence itself.
            warnings.simplefilter("ignore", UnfinishedWarning)
            status = _run(arguments.command)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # Whoever read the output has read enough (`| head`). What Python would still
        # write at its end goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except PushforwardError as error:
        if os.environ.get("PUSHFORWARD_TRACEBACK"):
            raise
        # One line, whatever the message holds.
        print(f"pushforward: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("pushforward: interrupted.", file=sys.stderr)
        return INTERRUPTED


def _require_current(words: list[str]) -> None:
    """Refuses a command that is now part of the paper's reproduction."""
    for old, new in MOVED.items():
        if words[: len(old.split())] != old.split():
            continue
        # A run may have the name "digits".
        if old != "sample digits" or not Path("digits").exists():
            raise UsageError(
                f"pushforward {old} is no longer part of the package; from a checkout "
                f"of the repository, use {new}."
            )


def _parsed(words: list[str]) -> Arguments:
    """The arguments; what cannot be parsed tyro explains, and exits with status 2."""
    markers = tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes
    try:
        return tyro.cli(
            Arguments,
            prog="pushforward",
            args=words,
            config=(*markers, tyro.conf.OmitSubcommandPrefixes),
        )
    except SystemExit:
        # A help text that nobody reads to its end is noticed here, not at the exit.
        sys.stdout.flush()
        raise


def _run(command: Command) -> int:
    match command:
        case Demo():
            return _demo(command)
        case Fit():
            return _fit(command)
        case Sample():
            return _sample(command)
        case Check():
            return _check(command)
        case Report():
            return _report(command)
        case Targets():
            return _targets()


def _targets() -> int:
    from pushforward.targets import catalogue

    rows = (catalogue.COLUMNS, *catalogue.describe())
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())
    return 0


def _key(seed: int) -> Any:
    import jax

    if not 0 <= seed < 2**32:
        raise UsageError(f"--seed must lie between 0 and 2^32 - 1, and is {seed}.")
    return jax.random.key(seed)


def _fit(arguments: Fit) -> int:
    import pushforward as pf
    from pushforward.targets import naming

    key = _key(arguments.seed)
    target = naming.target_from_spec(arguments.target, arguments.dim)
    registry: dict[str, Any] = pf.methods.REGISTRY
    method: Any = None
    if arguments.method != "default":
        method = registry[arguments.method]()
    fit = pf.fit(
        key,
        target,
        method,
        steps=arguments.steps,
        batch_size=arguments.batch_size,
        out=arguments.out,
        resume=arguments.resume,
        progress=not arguments.quiet,
        spec={
            "target": arguments.target,
            "dim": arguments.dim,
            "folder": str(Path.cwd()),
        },
    )
    if fit.status is pf.Status.INTERRUPTED:
        print(fit.message, file=sys.stderr)
        return INTERRUPTED
    if not arguments.quiet:
        print(fit.message)
        print(f"Is it any good?  pushforward check {arguments.out}")
        print(
            f"Draw from it:    pushforward sample {arguments.out} -n 1000000 "
            "--out draws.npz"
        )
    return 0


def _sample(arguments: Sample) -> int:
    key = _key(arguments.seed)
    sampler = _load(arguments.run)
    sampler.stream(key, arguments.draws, arguments.out, progress=not arguments.quiet)
    if not arguments.quiet:
        print(f"{arguments.draws:,} draws are in {arguments.out}.")
    return 0


def _check(arguments: Check) -> int:
    import pushforward as pf

    key = _key(arguments.seed)
    target = _target(arguments)
    sampler = _load(arguments.run, target)
    verdict = pf.check(
        key,
        target,
        sampler,
        n=arguments.draws,
        max_evaluations=arguments.max_evaluations,
    )
    if arguments.json:
        print(json.dumps(verdict.to_dict(), indent=2))
    else:
        print(verdict)
    return _status(verdict)


def _status(verdict: "Verdict") -> int:
    return {"passed": 0, "failed": FAILED, "inconclusive": INCONCLUSIVE}[
        verdict.outcome
    ]


def _report(arguments: Report) -> int:
    import pushforward as pf

    key = _key(arguments.seed)
    target = _target(arguments)
    run, out = arguments.run, arguments.out
    if out is None:
        out = run / "report.html" if run.is_dir() else run.with_suffix(".html")
    path = pf.report(
        key,
        target,
        _load(run, target),
        out,
        n=arguments.draws,
        max_evaluations=arguments.max_evaluations,
        run=run if run.is_dir() else None,
    )
    verdict = json.loads(path.with_suffix(".json").read_text("utf-8"))["verdict"]
    print(f"{verdict['outcome']}: {verdict['summary']}")
    print(f"Page:     {path}")
    print(f"Numbers:  {path.with_suffix('.json')}")
    return 0


def _target(arguments: Check | Report) -> "AbstractTarget":
    """The target to check against: the one given, or the one the run remembers."""
    from pushforward.targets import naming
    from pushforward.training.rundir import RunDirectory

    run = arguments.run
    if arguments.target is not None:
        return naming.target_from_spec(arguments.target, arguments.dim)
    if not run.exists():
        raise FileError(f"There is no run or file {run}.")
    about = RunDirectory(run).read_config().get("target") if run.is_dir() else None
    about = about if isinstance(about, dict) else {}
    spec = about.get("spec")
    # A run that was started from Python may remember anything, or nothing.
    if not isinstance(spec, dict) or not isinstance(spec.get("target"), str):
        # What is no sampler at all is told so first.
        _load(run)
        raise UsageError(
            f"{run} does not remember what it was trained for; say so with --target "
            "NAME, --target my_model.py:log_density --dim D or, where a module holds "
            "a Target, --target my_model.py:target."
        )
    folders = [Path(spec.get("folder") or "."), Path.cwd()]
    target = naming.target_from_spec(spec["target"], spec.get("dim"), folders)
    _require_same(target, about.get("fingerprint") or [], spec["target"])
    return target


def _require_same(target: "AbstractTarget", before: list[float], name: str) -> None:
    from pushforward.targets.examine import fingerprint, same_target

    if not same_target(target, fingerprint(target), before):
        raise UsageError(
            f"{name} is no longer the density this run was trained for; to check the "
            "sampler against it all the same, name it with --target."
        )


def _load(path: Path, target: "AbstractTarget | None" = None) -> "Sampler":
    import pushforward as pf

    if path.is_dir() and not (path / "sampler.safetensors").exists():
        if (path / "config.json").exists():
            raise FileError(
                f"The run in {path} is not finished; repeat its fit command with "
                "--resume."
            )
        raise FileError(f"There is no run in {path}.")
    return pf.load(path, target)


def _demo(arguments: Demo) -> int:
    import jax

    import pushforward as pf
    from pushforward.reporting.plot import draws_figure

    keys = jax.random.split(_key(0), 4)
    target = pf.targets.get(DEMO_TARGET)
    out = arguments.out
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _files.explain(out, error) from error
    print(
        f"Training a one-step sampler for {DEMO_TARGET!r}, a ring in the plane.",
        flush=True,
    )
    fit = pf.fit(keys[0], target, steps=DEMO_STEPS)
    if fit.status is pf.Status.INTERRUPTED:
        # Nothing of it is kept.
        raise KeyboardInterrupt
    print(fit.message)
    sampler = fit.sampler
    saved = sampler.save(out / f"{DEMO_TARGET}.pf")
    verdict = pf.check(keys[1], target, sampler)
    print(f"\n{verdict}\n")
    picture = draws_figure(
        target,
        sampler.sample(keys[2], 5000),
        target.sample(keys[3], 5000),
        out / f"{DEMO_TARGET}.png",
        title=f"{DEMO_TARGET}: one network pass per draw",
    )
    jax.block_until_ready(sampler.sample(keys[1], DEMO_SPEED))
    begun = time.perf_counter()
    jax.block_until_ready(sampler.sample(keys[2], DEMO_SPEED))
    rate = DEMO_SPEED / (time.perf_counter() - begun)
    print(f"Speed:    {rate:,.0f} draws a second on {jax.devices()[0].device_kind}.")
    print(f"Picture:  {picture}")
    print(f"Sampler:  {saved}")
    print("\nWhat to type next:")
    print(f"  pushforward sample {saved} -n 1000000 --out draws.npz")
    print(f"  pushforward check {saved} --target {DEMO_TARGET}")
    print("  pushforward targets")
    print("  pushforward fit mog2 --out runs/mog2")
    print("  pushforward fit my_model.py:log_density --dim 5 --out runs/mine")
    return _status(verdict)
