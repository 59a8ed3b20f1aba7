"""The command line.

Nothing heavy is imported before a command needs it: `--help` and `targets` answer at
once.
"""

import contextlib
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from pushforward import _files, _streams, _user_errors
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
    DamageWarning,
    FileError,
    PushforwardError,
    UnfinishedWarning,
    UsageError,
)

if TYPE_CHECKING:
    from pushforward import AbstractTarget, Sampler, Verdict

# The exit statuses; 128 and its number for a signal, as is usual. What --help says of
# them stands in `_cli_arguments.py`.
DONE, FAILED, REFUSED, INCONCLUSIVE, INTERNAL, INTERRUPTED = 0, 1, 2, 3, 4, 130

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
    _streams.prepare()
    try:
        with _streams.signals_as_exceptions():
            status = _answered(words)
            sys.stdout.flush()
            return status
    except _streams.Terminated as stop:
        _say(f"stopped by {stop.name}{stop.advice}.")
        return 128 + stop.number
    except KeyboardInterrupt:
        _say("interrupted.")
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has read enough (`| head`).
        _streams.silence()
        return DONE
    except OSError as error:
        # The output is one of the things that may be full or gone.
        _streams.silence()
        _say(_in_words(error))
        return REFUSED


def _answered(words: list[str]) -> int:
    """The exit status of a command, with a sentence where it did not come to its end.

    What the system refuses, and what the user breaks off, `main` answers for.
    """
    if words[:1] == ["--version"]:
        print(f"pushforward {__version__}")
        return DONE
    debug = bool(os.environ.get("PUSHFORWARD_TRACEBACK"))
    try:
        _require_current(words)
        arguments = _parsed(words or ["--help"])
        _require_here()
        with _told_warnings():
            return _run(arguments.command)
    except PushforwardError as error:
        if debug:
            raise
        _say(str(error))
        return REFUSED
    except (OSError, KeyboardInterrupt):
        raise
    except Exception as error:
        if debug:
            raise
        if _user_errors.location(error):
            _say(_user_errors.raised("Your code", error) + ".")
            return REFUSED
        frame = traceback.extract_tb(error.__traceback__)[-1]
        message = " ".join(str(error).split())[:400].rstrip(".")
        _say(
            f"internal error: {type(error).__name__}: {message} "
            f"({Path(frame.filename).name}, line {frame.lineno}). This is a mistake of "
            "pushforward's; please report it, with this line, the command, and what "
            "the command prints with PUSHFORWARD_TRACEBACK=1, as SECURITY.md says."
        )
        return INTERNAL


def _say(sentence: str) -> None:
    """One line on stderr, whatever the sentence holds."""
    line = " ".join(sentence.split())
    # What a file holds may stand in it, and a terminal would obey that.
    line = "".join(c if c.isprintable() else "?" for c in line)
    with contextlib.suppress(OSError):
        print(f"pushforward: {line}", file=sys.stderr, flush=True)


def _in_words(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    if error.filename is None:
        return f"The output cannot be written ({reason}); write it elsewhere."
    return f"{error.filename} cannot be used ({reason}); choose another place."


@contextlib.contextmanager
def _told_warnings() -> Iterator[None]:
    """Warnings of what was damaged are sentences like the others."""
    with warnings.catch_warnings():
        # Each command that trains prints that sentence itself.
        warnings.simplefilter("ignore", UnfinishedWarning)
        warnings.simplefilter("always", DamageWarning)
        others = warnings.showwarning

        def show(message, category, *place, **options):
            if issubclass(category, DamageWarning):
                _say(str(message))
            else:
                others(message, category, *place, **options)

        warnings.showwarning = show
        yield


def _require_here() -> None:
    """Refuses to work in a directory that is gone."""
    try:
        os.getcwd()
    except OSError as error:
        raise FileError(
            "The working directory is not there any more; change to another one."
        ) from error


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
    try:
        return _command(command)
    except SystemExit as stop:
        # Ours return. A density, or a library it uses, ended the program: were that
        # let through, its status would be taken for an answer.
        raise UsageError(
            f"Your code ended the program (sys.exit({stop.code!r})"
            f"{_at(stop)}) before the command was done; remove that call."
        ) from stop


def _keep_programs() -> None:
    """Compiled programs outlive the command; said when the first are kept."""
    from pushforward._cache import cache_programs

    place = cache_programs()
    if place is not None and not any(place.glob("*-cache")):
        print(
            f"Compiled programs are kept in {place}, so that the next start is faster; "
            "JAX_ENABLE_COMPILATION_CACHE=0 turns that off.",
            file=sys.stderr,
        )


def _at(error: BaseException) -> str:
    place = _user_errors.location(error)
    return f", {place}" if place else ""


def _command(command: Command) -> int:
    if not isinstance(command, Targets):
        _keep_programs()
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
    try:
        fit = pf.fit(
            key,
            target,
            method,
            steps=arguments.steps,
            batch_size=arguments.batch_size,
            max_evaluations=arguments.max_evaluations,
            out=arguments.out,
            resume=arguments.resume,
            progress=not arguments.quiet,
            spec={
                "target": arguments.target,
                "dim": arguments.dim,
                "folder": str(Path.cwd()),
            },
        )
    except _streams.Terminated as stop:
        if (arguments.out / "state.safetensors").exists():
            stop.advice = (
                f"; what it had learnt by then is in {arguments.out}: to continue, "
                "repeat the command with --resume"
            )
        raise
    if fit.status is pf.Status.INTERRUPTED:
        print(fit.message, file=sys.stderr)
        return INTERRUPTED
    if not arguments.quiet:
        print(fit.message)
        trust = " --trust" if naming.is_code(arguments.target) else ""
        print(f"Is it any good?  pushforward check {arguments.out}{trust}")
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
    name, dim, folder = spec["target"], spec.get("dim"), spec.get("folder")
    if not isinstance(dim, int | None) or not isinstance(folder, str | None):
        raise FileError(f"{run} is damaged: its config does not say where {name} is.")
    if naming.is_code(name) and not arguments.trust:
        raise UsageError(
            f"{run} was trained for {name!r}, and loading that density runs its code; "
            "if you trust whoever made the run, pass --trust, or name what it should "
            "sample from with --target."
        )
    folders = [Path(folder or "."), Path.cwd()]
    target = naming.target_from_spec(name, dim, folders)
    _require_same(target, about.get("fingerprint") or [], name)
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
