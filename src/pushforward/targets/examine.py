"""Examination of a user's target before the first step: a check list, with advice."""

import dataclasses
from collections.abc import Sequence

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

# How far apart two results in 16 bits may be, of the largest number among them. Each
# rounding to `bfloat16` is right to 2^-8, and many of them add up: energy models of
# images differ from their values in 32 bits by one to three times that.
_TOLERANCE_16_BITS = 0.02
# Absolute tolerance.
_TOLERANCE = 1e-4
# How far sums over the same data may be apart, relative to their norm.
_ROUNDING = 1e-6
# Numbers summed at once, and the irregular step of their weights.
_BLOCK, _GOLDEN = 2**20, 0.6180339887498949


@dataclasses.dataclass(frozen=True)
class Examination:
    """What was found: `(name, ok, sentence)` for each check, in order."""

    checks: list[tuple[str, bool, str]]
    error: DensityError | None = None

    @property
    def passed(self) -> bool:
        """Whether every check was passed."""
        return self.error is None

    def __str__(self) -> str:
        return "\n".join(f"{'✓' if ok else '✗'} {s}" for _, ok, s in self.checks)


def require(key: PRNGKeyArray, target: AbstractTarget) -> None:
    """Examines a target, and raises the first failure as a `DensityError`."""
    error = examine(key, target).error
    if error is not None:
        raise error


def examine(key: PRNGKeyArray, target: AbstractTarget) -> Examination:
    """Checks a target: does it run, is it finite, does the density decrease far out?

    Args:
        key: random key for the test points.
        target: the target.

    Returns:
        An `Examination`; `print` shows it with ticks and crosses. Checks that depend on
        one that failed are left out.
    """
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
    checks, first = [], None
    for name, vital, check in _plan(target, rng):
        try:
            checks.append((name, True, check()))
        except DensityError as error:
            checks.append((name, False, str(error)))
            first = first or error
            if vital:
                break
    return Examination(checks, first)


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
    yield (
        "coordinates",
        False,
        lambda: _check_coordinates(target, points, results[0]),
    )
    if has_density:
        yield "falls", False, lambda: _check_falls(target, rng, points, results[0])


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
    for i, part in enumerate(parts):
        values = seen.parts[:, i]
        if np.any(np.isposinf(values)):
            worst = np.flatnonzero(np.isposinf(values))[0]
            raise DensityError(
                f"Your {part.name} is +inf at {_point(target, points[worst])}: a "
                "density must be finite, so look for a division by zero or an overflow."
            )
        bad = ~np.isfinite(values)
        # A coordinate that must be positive makes half of the points invalid.
        if bad.sum() <= n / 4:
            continue
        kind = "nan" if np.any(np.isnan(values)) else "-inf"
        count = "all" if bad.all() else f"{bad.sum()} of {n}"
        head = f"Your {part.name} is {kind} at {count} random starting points"
        if datum := _broken_datum(target, i, points[~bad] if not bad.all() else points):
            raise DensityError(f"{head}; {datum} alone makes it so.")
        raise DensityError(f"{head}{_blamed(target, i, points, bad)}")
    return f"It is finite at random starting points ({n} of them)."


def _blamed(target, part: int, points: np.ndarray, bad: np.ndarray) -> str:
    found = probing.culprit(target, part, points, bad)
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
    nan = np.isnan(seen.score) & counts[:, None]
    infinite = np.isinf(seen.score) & counts[:, None]
    broken = nan if nan.any() else infinite
    if nan.any() or infinite.any(axis=1).sum() > counts.sum() / 4:
        worst = int(np.argmax(broken.sum(axis=0)))
        where = np.flatnonzero(broken[:, worst])
        value = seen.score[where[0], worst]
        raise DensityError(
            f"The {what}{level} with respect to {target.names[worst]!r} is {value:g} "
            f"at {len(where)} of {counts.sum()} random points, such as "
            f"{_at(target, worst, points[where[0], worst])}: look for sqrt, log, a "
            "norm or a division, also in the branch of jnp.where that is not taken."
        )
    return f"The {what} is finite in every coordinate{level}."


def _check_coordinates(target, points: np.ndarray, seen: Evaluations) -> str:
    good = np.isfinite(seen.score).all(axis=1) & np.isfinite(seen.values)
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
        if np.any(values[1:3] != values[0]):
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
    (t0, near), (t1, far) = flat[0].near, flat[0].far
    falls = "does not fall" if far > near - 1 else "falls too slowly"
    raise DensityError(
        f"The density {falls} in the direction {_direction(target, flat[0])} (its log "
        f"is {near:.4g} at a distance of {t0:g} and {far:.4g} at {t1:g}): it cannot be "
        "normalised, and draws would run away; is a prior missing, or a sign wrong?"
    )


def _direction(target: AbstractTarget, flat: probing.Flat) -> str:
    order = np.argsort(-np.abs(flat.direction), kind="stable")
    if abs(flat.direction[order[0]]) > 0.999:
        sign = "+" if flat.direction[order[0]] > 0 else "-"
        return f"{sign}{target.names[order[0]]}"
    terms = [f"{flat.direction[i]:+.2f} {target.names[i]}" for i in order[:3]]
    return " ".join(terms) + (" ..." if target.dim > 3 else "")
