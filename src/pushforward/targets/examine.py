"""Examination of a user's target before the first step: a check list, with advice."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray, Shaped

from pushforward.errors import DensityError
from pushforward.targets import probing, user_functions
from pushforward.targets.base import AbstractTarget, UserFunction
from pushforward.targets.constraints import CONSTRAINT_HINT
from pushforward.targets.probing import Evaluations, evaluate
from pushforward.targets.user_functions import Doubt

# How far apart two results in 16 bits may be, of the largest number among them. Each
# rounding to `bfloat16` is right to 2^-8, and many of them add up: energy models of
# images differ from their values in 32 bits by one to three times that.
_TOLERANCE_16_BITS = 0.02
# How far a density may change under its symmetry: in units of the rounding of what is
# added up, and at all.
_SAME, _NOTHING = 2000, 1e-3
# Absolute tolerance.
_TOLERANCE = 1e-4
# How far sums over the same data may be apart, relative to their norm.
_ROUNDING = 1e-6
# Numbers summed at once, and the irregular step of their weights.
_BLOCK, _GOLDEN = 2**20, 0.6180339887498949


class Check(NamedTuple):
    """One check: what was looked at, and the sentence about it.

    `ok` is whether there is nothing to say; where there is, `is_doubt` tells a doubt,
    with which the target can be used, from an error.
    """

    name: str
    ok: bool
    sentence: str
    is_doubt: bool = False


@dataclasses.dataclass(frozen=True)
class Examination:
    """What was found.

    Attributes:
        checks: each check, in order.
        error: why the target cannot be used; None where it can.
        suspects: directions in which the density does not seem to fall. From where its
            mass is they may look different: see `mcmc.tails`.
    """

    checks: list[Check]
    error: DensityError | None = None
    suspects: tuple[probing.Flat, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the target can be used; there may be doubts."""
        return self.error is None

    @property
    def doubts(self) -> tuple[str, ...]:
        """What may be wrong, and may be right: a sentence for each."""
        return tuple(check.sentence for check in self.checks if check.is_doubt)

    def __str__(self) -> str:
        def mark(check: Check) -> str:
            return "✓" if check.ok else "?" if check.is_doubt else "✗"

        return "\n".join(f"{mark(check)} {check.sentence}" for check in self.checks)


class _FlatDoubt(Doubt):
    """The density does not seem to fall in some directions."""

    def __init__(self, sentence: str, suspects: Sequence[probing.Flat]):
        super().__init__(sentence)
        self.suspects = tuple(suspects)


# The check of the tails, whose doubt a second look may settle.
FALLS = "falls"


def examine(key: PRNGKeyArray, target: AbstractTarget) -> Examination:
    """Checks a target: does it run, is it finite, does the density decrease far out?

    What makes a target useless is an error. All else is a doubt: a point at which the
    density is not a finite number has density zero, and a density that does not seem
    to fall may fall further out.

    Args:
        key: random key for the test points.
        target: the target.

    Returns:
        An `Examination`; `print` shows it with ticks, question marks and crosses.
        Checks that depend on one that failed are left out.
    """
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
    checks: list[Check] = []
    error, suspects = None, ()
    for name, vital, check in _plan(target, rng):
        try:
            checks.append(Check(name, True, check()))
        except Doubt as doubt:
            checks.append(Check(name, False, str(doubt), is_doubt=True))
            if isinstance(doubt, _FlatDoubt):
                suspects = doubt.suspects
        except DensityError as found:
            checks.append(Check(name, False, str(found)))
            error = error or found
            if vital:
                break
    return Examination(checks, error, suspects)


def fingerprint(target: AbstractTarget) -> list[float]:
    """Numbers by which a resumed run recognises its target.

    Log density (0 where there is none) and score at three fixed points, then two sums
    over each array of the data and of the user's functions: a few edited observations
    among very many hardly change the log density.
    """
    steps = np.arange(3 * target.dim).reshape(3, target.dim)
    # Irregular, and the same in every process and every version of every library.
    points = np.array([[0.3], [0.8], [1.7]]) * np.cos(1.0 + 2.4 * steps)
    seen = evaluate(target, points, _levels(target)[0])
    table = np.concatenate([seen.values[:, None], seen.score], axis=1)
    given = [(f.given, f.data) for f in target.user_functions()]
    arrays = jax.tree.leaves(eqx.filter(given, eqx.is_array))
    sums = [checksum(np.asarray(a)) for a in arrays if not _is_key(a)]
    numbers = np.concatenate([table.astype(np.float64).ravel(), *sums])
    # Finite numbers, so that they can be stored as JSON and compared.
    return np.nan_to_num(numbers, posinf=1e308, neginf=-1e308).tolist()


def _is_key(array: jax.Array | np.ndarray) -> bool:
    return jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


def checksum(array: Shaped[np.ndarray, "..."]) -> Float[np.ndarray, "2"]:
    """The norm of an array, and a sum with irregular weights up to 1/2.

    Edited data change them, and the rounding of another device by a millionth at most.
    """
    if np.iscomplexobj(array):
        array = np.stack([np.real(array), np.imag(array)])
    square = weighted = 0.0
    flat = array.ravel()
    for start in range(0, flat.size, _BLOCK):
        block = flat[start : start + _BLOCK].astype(np.float64)
        weights = (np.arange(start, start + block.size) * _GOLDEN) % 1 - 0.5
        square += float(block @ block)
        weighted += float(weights @ block)
    return np.array([square**0.5, weighted])


def same_target(
    target: AbstractTarget, prints: list[float], others: list[float]
) -> bool:
    """Whether two fingerprints, one of them of this target, are of the same target.

    Another device, or another program for the same convolution, rounds differently; an
    edited density differs by much more. In 16 bits the numbers of one score are rounded
    by about as much as its largest one is.
    """
    size = 3 * (1 + target.dim)
    if len(others) == size:
        # Runs of version 0.1 kept no sums over the data.
        prints = prints[:size]
    if len(prints) != len(others):
        return False
    a, b = (np.asarray(m[size:], float).reshape(-1, 2) for m in (prints, others))
    if np.any(np.abs(a - b) > _ROUNDING * np.maximum(a, b)[:, :1]):
        return False
    a, b = (np.asarray(m[:size]).reshape(-1, 1 + target.dim) for m in (prints, others))
    if np.allclose(a, b, rtol=1e-3, atol=_TOLERANCE):
        return True
    if not _in_half_precision(target):
        return False
    sizes = np.maximum(np.abs(a), np.abs(b))
    # Values stand first in a row; they have a size of their own, scores another.
    sizes[:, 0] = sizes[:, 0].max()
    sizes[:, 1:] = sizes[:, 1:].max(axis=1, keepdims=True)
    return bool(np.all(np.abs(a - b) <= _TOLERANCE_16_BITS * sizes + _TOLERANCE))


def _in_half_precision(target: AbstractTarget) -> bool:
    """Whether the program of the target computes in 16 bits anywhere."""
    level = _levels(target)[0]
    origin = jnp.zeros(target.dim, float)
    program = jax.make_jaxpr(lambda x: target.score(x, sigma=level))(origin)
    # Both `float16` and `bfloat16` are printed so.
    return "f16[" in str(program)


def _levels(target: AbstractTarget) -> list[float] | list[None]:
    """The noise levels at which to check: both ends of the range, if there is one."""
    return sorted({s for s in target.noise_range if s > 0}) or [None]


def _plan(target: AbstractTarget, rng: np.random.Generator):
    """The checks, each with its name and whether the later ones depend on it."""
    x = jnp.asarray(0.1 * rng.standard_normal(target.dim), float)
    parts = target.user_functions()
    has_density = target.why_no_density() is None
    for part in parts:
        for name, check in (
            ("returns", user_functions.check_return),
            ("indices", user_functions.check_indices),
        ):
            yield f"{part.name} {name}", True, lambda c=check, p=part: c(target, p, x)
    if has_density:
        yield "gradient", True, lambda: user_functions.check_gradient(target, parts, x)
    points = probing.starting_points(rng, target)
    results: list[Evaluations] = []
    for sigma in _levels(target):
        yield (
            "batches",
            True,
            lambda g=sigma: _evaluate(target, parts, points, g, results),
        )
        seen = results[-1]
        if has_density:
            yield (
                "finite",
                True,
                lambda: _check_values(target, parts, points, results[0]),
            )
        yield (
            "finite score",
            True,
            lambda s=seen, g=sigma: _check_score(target, points, s, g),
        )
    if target.symmetry is not None:
        yield "symmetry", True, lambda: _check_symmetry(target, rng, points)
    yield (
        "coordinates",
        False,
        lambda: _check_coordinates(target, points, results[0]),
    )
    if has_density:
        yield FALLS, False, lambda: _check_falls(target, rng, points, results[0])


def _evaluate(
    target, parts: Sequence[UserFunction], points: np.ndarray, sigma, results: list
) -> str:
    try:
        results.append(evaluate(target, points, sigma))
    except Exception as error:
        # Tracing succeeded, so this is an error at run time.
        raise user_functions.user_error(
            target, f"Your {parts[-1].name}", error
        ) from error
    return f"It can be evaluated at {len(points)} points at once."


def _at(target: AbstractTarget, index: int, value: float) -> str:
    return f"{target.names[index]!r} = {value:.3g}{_space(target)}"


def _space(target: AbstractTarget) -> str:
    """A note that a point is shown unconstrained, where some parameter is not."""
    return "" if target.structure.is_linear else " (unconstrained)"


def _check_values(
    target, parts: Sequence[UserFunction], points: np.ndarray, seen: Evaluations
) -> str:
    n = len(points)
    doubts: list[str] = []
    for i, part in enumerate(parts):
        values = seen.parts[:, i]
        bad = ~np.isfinite(values)
        if not bad.any():
            continue
        infinite = np.isposinf(values)
        if infinite.any():
            worst = np.flatnonzero(infinite)[0]
            sentence = (
                f"Your {part.name} is +inf at {_point(target, points[worst])}: a "
                "density must be finite, so look for a division by zero or an overflow."
            )
            if bad.all():
                raise DensityError(sentence)
            doubts.append(sentence)
            continue
        kind = "nan" if np.any(np.isnan(values)) else "-inf"
        count = "all" if bad.all() else f"{bad.sum()} of {n}"
        head = f"Your {part.name} is {kind} at {count} random starting points"
        if bad.all() and (datum := _broken_datum(target, i, points)):
            raise DensityError(f"{head}; {datum} alone makes it so.")
        sentence = f"{head}{_blamed(target, i, points, bad)}"
        if bad.all():
            raise DensityError(sentence)
        doubts.append(sentence)
    if not np.isfinite(seen.values).any():
        raise DensityError(
            "At no random starting point are all parts of the log density finite: "
            + " ".join(doubts)
        )
    if doubts:
        raise Doubt(doubts[0])
    return f"It is finite at random starting points ({n} of them)."


def _blamed(target, part: int, points: np.ndarray, bad: np.ndarray) -> str:
    found = probing.culprit(target, part, points, bad)
    if found is None and not bad.all():
        return (
            f", such as {_point(target, points[bad][0])}: they count as points of "
            "density zero; if parameters have bounds, give them "
            f"{CONSTRAINT_HINT}."
        )
    if found is None:
        return (
            f", such as {_point(target, points[bad][0])}; it must be finite around the "
            "origin, so shift or scale its parameters, or give those that have bounds "
            f"{CONSTRAINT_HINT}."
        )
    here = _at(target, found.index, found.value)
    if not found.negative:
        return (
            f", because of a coordinate's value, such as {here}: if it has bounds, "
            f"give it {CONSTRAINT_HINT}."
        )
    name = target.names[found.index]
    return (
        f", because {name!r} is negative there, such as {here}: if it must be "
        f"positive, or has other bounds, give it {CONSTRAINT_HINT}."
    )


def _point(target: AbstractTarget, x: np.ndarray) -> str:
    named = [f"{n} = {v:.3g}" for n, v in zip(target.names, x, strict=True)]
    more = ", ..." if len(named) > 4 else ""
    return ", ".join(named[:4]) + more + _space(target)


def _broken_datum(target, part: int, points: np.ndarray) -> str:
    """Which observation breaks the likelihood at every point, where one does."""
    if target.user_functions()[part].terms is None:
        return ""

    @eqx.filter_jit
    def each(target, x):
        return target.user_functions()[part].terms(x)

    broken = [~np.isfinite(each(target, jnp.asarray(x, float))) for x in points[:4]]
    always = np.flatnonzero(np.all(broken, axis=0))
    # Where all of them break, the parameters are to blame.
    if not len(always) or len(always) == target.num_terms:
        return ""
    return f"observation {always[0]} of the data"


def _check_score(target, points: np.ndarray, seen: Evaluations, sigma=None) -> str:
    what = (
        "gradient of your log density"
        if target.why_no_density() is None
        else "score you gave"
    )
    level = "" if sigma is None else f" at sigma = {sigma:g}"
    # Where the density itself nearly overflows, its gradient may.
    counts = np.abs(seen.values) < 1e30
    broken = ~np.isfinite(seen.score) & counts[:, None]
    if broken.any():
        worst = int(np.argmax(broken.sum(axis=0)))
        where = np.flatnonzero(broken[:, worst])
        value = seen.score[where[0], worst]
        sentence = (
            f"The {what}{level} with respect to {target.names[worst]!r} is {value:g} "
            f"at {len(where)} of {counts.sum()} random points, such as "
            f"{_at(target, worst, points[where[0], worst])}: look for sqrt, log, a "
            "norm or a division, also in the branch of jnp.where that is not taken."
        )
        # A few points alone prove nothing.
        everywhere = len(where) == counts.sum() and len(where) > 3
        raise DensityError(sentence) if everywhere else Doubt(sentence)
    return f"The {what} is finite in every coordinate{level}."


def _check_symmetry(target, rng: np.random.Generator, points: np.ndarray) -> str:
    """Whether the density, or the score, stays the same under random elements."""
    action = target.symmetry
    key = jax.random.key(int(rng.integers(2**31)))
    keys = jax.random.split(key, len(points))
    at = jnp.asarray(points, float)
    moved = np.asarray(_moved(action, keys, at))
    here, there = (evaluate(target, p, _levels(target)[0]) for p in (points, moved))
    if target.why_no_density() is None:
        a, b = here.values, there.values
        differences = np.abs(a - b)
        sizes = 1 + np.abs(a) + np.abs(b) + np.sum(np.abs(points * here.score), axis=1)
        usual = np.abs(a) < 1e30
        what = "log density"
    else:
        # s(x) = T' s(T x), with T' the transpose of the linear map T.
        back = np.asarray(_pulled_back(action, keys, at, jnp.asarray(there.score)))
        differences = np.max(np.abs(here.score - back), axis=1)
        a, b = (np.max(np.abs(s), axis=1) for s in (here.score, back))
        sizes, usual = 1 + a + b, np.isfinite(here.score).all(axis=1)
        what = "score"
    eps = np.finfo(np.asarray(at).dtype).eps
    share = _TOLERANCE_16_BITS if _in_half_precision(target) else _SAME * eps
    # Rounding grows with what is added up; a difference below the first number would
    # change nothing.
    allowed = _NOTHING + share * np.nan_to_num(sizes, nan=np.inf)
    changed = usual & ~(differences <= allowed)
    if not changed.any():
        return f"The {what} does not change under {action}."
    shown = np.nan_to_num(differences, nan=np.inf)
    worst = int(np.argmax(np.where(changed, shown / allowed, -1.0)))
    raise DensityError(
        f"Your {what} changes under the symmetry {action}: at "
        f"{_point(target, points[worst])} and at the same point moved by an element of "
        f"the group, {_point(target, moved[worst])}, it differs by "
        f"{shown[worst]:.3g} ({a[worst]:.6g} and {b[worst]:.6g}), at {changed.sum()} "
        f"of {len(points)} random points; name all parameters that move together, or "
        "leave the symmetry out."
    )


@eqx.filter_jit
def _moved(action, keys, points):
    return jax.vmap(action.move_randomly)(keys, points)


@eqx.filter_jit
def _pulled_back(action, keys, points, scores):
    def one(key, x, score):
        return jax.vjp(lambda u: action.move_randomly(key, u), x)[1](score)[0]

    return jax.vmap(one)(keys, points, scores.astype(points.dtype))


def _check_coordinates(target, points: np.ndarray, seen: Evaluations) -> str:
    good = np.isfinite(seen.score).all(axis=1) & np.isfinite(seen.values)
    if not good.any():
        raise Doubt(
            "At no random starting point are all parts of the gradient finite, so "
            "whether every coordinate matters was not seen."
        )
    silent = np.flatnonzero(np.all(seen.score[good] == 0, axis=0))
    for index in silent:
        name = target.names[index]
        if target.why_no_density() is not None:
            raise DensityError(
                f"The score you gave is 0 in the coordinate {name!r} at every point: "
                "nothing would keep the draws from running away in it."
            )
        step = np.eye(target.dim)[index]
        start = points[good][0]
        moved = [start + t * step for t in (0.0, 0.5, -0.5, *probing.DISTANCES)]
        values = evaluate(target.subsample(probing.MAX_DATA), np.stack(moved)).values
        if np.all(values == values[0]):
            other = "lower dim" if target.structure.is_vector else "leave it out"
            raise DensityError(
                f"The density ignores the coordinate {name!r}: use it or {other}; "
                "otherwise draws would run away in it."
            )
        # A uniform density has no gradient, and ends where it is not finite.
        near = values[1:3]
        if np.any(near[np.isfinite(near)] != values[0]):
            raise DensityError(
                f"The gradient in the coordinate {name!r} is 0 at every point, though "
                "the density changes with it: look for stop_gradient, rounding or a "
                "cast to integers."
            )
    return "Every coordinate matters."


def _check_falls(target, rng, points: np.ndarray, seen: Evaluations) -> str:
    # A subsample raises a suspicion at little cost; all data must confirm it.
    few = target.subsample(probing.MAX_DATA)
    flat = probing.flat_directions(few, rng, points, seen)
    if flat and few is not target:
        flat = probing.flat_directions(target, rng, points, seen)
    if not flat:
        return "It decreases in every direction that was probed."
    raise _FlatDoubt(
        f"The density {seems(flat[0])} in the direction {direction(target, flat[0])} "
        f"(its log is {flat[0].near[1]:.4g} at a distance of {flat[0].near[0]:g} and "
        f"{flat[0].far[1]:.4g} at {flat[0].far[0]:g}).",
        flat,
    )


def seems(flat: probing.Flat) -> str:
    """How a flat direction looks, as a predicate of the density."""
    return "falls too slowly" if flat.falls else "does not fall"


def direction(target: AbstractTarget, flat: probing.Flat) -> str:
    """A direction by the names of its coordinates."""
    unit = flat.direction / np.linalg.norm(flat.direction)
    order = np.argsort(-np.abs(unit), kind="stable")
    if abs(unit[order[0]]) > 0.999:
        return f"{'+' if unit[order[0]] > 0 else '-'}{target.names[order[0]]}"
    terms = [f"{unit[i]:+.2f} {target.names[i]}" for i in order[:3]]
    return " ".join(terms) + (" ..." if target.dim > 3 else "")
