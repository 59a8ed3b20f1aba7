"""First contact with a user's density: a check list whose failures say what to do."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from pushforward.errors import DensityError
from pushforward.targets import functions, probing
from pushforward.targets.base import AbstractTarget, MinibatchTarget
from pushforward.targets.constraints import REMEDY
from pushforward.targets.functions import Piece
from pushforward.targets.probing import Seen, evaluate

# How far apart two results in 16 bits may be, of the largest number among them. Each
# rounding to `bfloat16` is right to 2^-8, and many of them add up: energy models of
# images differ from their values in 32 bits by one to three times that.
_HALF = 0.02
# What is less than this is nothing.
_NOTHING = 1e-4


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
    """Walks a check list over a target: does it run, is it finite, does it fall?

    Args:
        key: random key for the points looked at.
        target: the target.

    Returns:
        An `Examination`; `print` shows it with ticks and crosses. Checks that make no
        sense after a failure are left out.
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
    """Log density (0 where there is none) and score at three fixed points.

    Two targets that differ here are different; a resumed run is held to it.
    """
    steps = np.arange(3 * target.dim).reshape(3, target.dim)
    # Irregular, and the same in every process and every version of every library.
    points = np.array([[0.3], [0.8], [1.7]]) * np.cos(1.0 + 2.4 * steps)
    seen = evaluate(target, points, _levels(target)[0])
    table = np.concatenate([seen.values[:, None], seen.score], axis=1)
    # Finite numbers, so that they can be stored as JSON and compared.
    table = np.nan_to_num(table.astype(np.float64), posinf=1e308, neginf=-1e308)
    return table.ravel().tolist()


def resembles(target: AbstractTarget, marks: list[float], others: list[float]) -> bool:
    """Whether two fingerprints, one of them of this target, are of the same target.

    Another device, or another program for the same convolution, rounds differently; an
    edited density differs by much more. In 16 bits the numbers of one score are rounded
    by about as much as its largest one is.
    """
    if len(marks) != len(others):
        return False
    a, b = (np.asarray(m, float).reshape(-1, 1 + target.dim) for m in (marks, others))
    if np.allclose(a, b, rtol=1e-3, atol=_NOTHING):
        return True
    if not _in_half_precision(target):
        return False
    sizes = np.maximum(np.abs(a), np.abs(b))
    # Values stand first in a row; they have a size of their own, scores another.
    sizes[:, 0] = sizes[:, 0].max()
    sizes[:, 1:] = sizes[:, 1:].max(axis=1, keepdims=True)
    return bool(np.all(np.abs(a - b) <= _HALF * sizes + _NOTHING))


def _in_half_precision(target: AbstractTarget) -> bool:
    """Whether the program of the target has numbers of 16 bits in it."""
    level = _levels(target)[0]
    origin = jnp.zeros(target.dim, float)
    program = jax.make_jaxpr(lambda x: target.score(x, sigma=level))(origin)
    # So both kinds, `float16` and `bfloat16`, are written there.
    return "f16[" in str(program)


def _levels(target: AbstractTarget) -> list[float] | list[None]:
    """The noise levels to look at: both ends of the range, where there is one."""
    if target.sigma_range is None:
        return [None]
    return sorted(set(target.sigma_range))


def _plan(target: AbstractTarget, rng: np.random.Generator):
    """The checks, each with its name and whether the later ones depend on it."""
    x = jnp.asarray(0.1 * rng.standard_normal(target.dim), float)
    pieces = functions.pieces_of(target)
    for piece in pieces:
        for name, check in (
            ("returns", functions.check_return),
            ("indices", functions.check_indices),
        ):
            yield f"{piece.name} {name}", True, lambda c=check, p=piece: c(target, p, x)
    if target.has_density:
        yield "gradient", True, lambda: functions.check_gradient(target, pieces, x)
    points = probing.starting_points(rng, target)
    looks: list[Seen] = []
    for sigma in _levels(target):
        yield "batches", True, lambda g=sigma: _look(target, pieces, points, g, looks)
        seen = looks[-1]
        if target.has_density:
            yield (
                "finite",
                True,
                lambda: _check_values(target, pieces, points, looks[0]),
            )
        yield (
            "finite score",
            True,
            lambda s=seen, g=sigma: _check_score(target, points, s, g),
        )
    yield "coordinates", False, lambda: _check_coordinates(target, points, looks[0])
    if target.has_density:
        yield "falls", False, lambda: _check_falls(target, rng, points, looks[0])


def _look(target, pieces: list[Piece], points: np.ndarray, sigma, looks: list) -> str:
    try:
        looks.append(evaluate(target, points, sigma))
    except Exception as error:
        # Shapes were right, so it is something that only a run shows.
        raise functions.theirs(target, f"Your {pieces[-1].name}", error) from error
    return f"It can be evaluated at {len(points)} points at once."


def _at(target: AbstractTarget, index: int, value: float) -> str:
    return f"{target.names[index]!r} = {value:.3g}{_space(target)}"


def _space(target: AbstractTarget) -> str:
    """A word on the coordinates in which a point is shown, where there are two."""
    free = all(leaf.constraint.kind == "real" for leaf in target.structure.leaves)
    return "" if free else " (unconstrained)"


def _check_values(target, pieces: list[Piece], points: np.ndarray, seen: Seen) -> str:
    n = len(points)
    for i, piece in enumerate(pieces):
        values = seen.parts[:, i]
        if np.any(np.isposinf(values)):
            worst = np.flatnonzero(np.isposinf(values))[0]
            raise DensityError(
                f"Your {piece.name} is +inf at {_point(target, points[worst])}: a "
                "density must be finite, so look for a division by zero or an overflow."
            )
        bad = ~np.isfinite(values)
        # A coordinate that must be positive breaks half of the points.
        if bad.sum() <= n / 4:
            continue
        kind = "nan" if np.any(np.isnan(values)) else "-inf"
        count = "all" if bad.all() else f"{bad.sum()} of {n}"
        head = f"Your {piece.name} is {kind} at {count} random starting points"
        if datum := _broken_datum(target, i, points[~bad] if not bad.all() else points):
            raise DensityError(f"{head}, and already so for {datum}.")
        raise DensityError(f"{head}{_blamed(target, i, points, bad)}")
    return f"It is finite at random starting points ({n} of them)."


def _blamed(target, part: int, points: np.ndarray, bad: np.ndarray) -> str:
    found = probing.culprit(target, part, points, bad)
    if found is None:
        return (
            f", such as {_point(target, points[bad][0])}; it must be finite around the "
            "origin, so shift or scale its parameters, or give those that have bounds "
            f"{REMEDY}."
        )
    here = _at(target, found.index, found.value)
    if not found.negative:
        return (
            f", because of a coordinate's value, such as {here}: if it has bounds, "
            f"give it {REMEDY}."
        )
    name = target.names[found.index]
    return (
        f", because {name!r} is negative there, such as {here}: if it must be "
        f"positive, or has other bounds, give it {REMEDY}."
    )


def _point(target: AbstractTarget, x: np.ndarray) -> str:
    named = [f"{n} = {v:.3g}" for n, v in zip(target.names, x, strict=True)]
    more = ", ..." if len(named) > 4 else ""
    return ", ".join(named[:4]) + more + _space(target)


def _broken_datum(target, part: int, points: np.ndarray) -> str:
    """Which observation breaks the likelihood at every point, where one does."""
    if not isinstance(target, MinibatchTarget) or part != 1:
        return ""

    @eqx.filter_jit
    def each(target, x):
        parameters = target.structure.unflatten(x)
        return jax.vmap(lambda d: target.log_likelihood(parameters, d))(target.data)

    broken = [~np.isfinite(each(target, jnp.asarray(x, float))) for x in points[:4]]
    always = np.flatnonzero(np.all(broken, axis=0))
    # Where all of them break, the parameters are to blame.
    if not len(always) or len(always) == target.size:
        return ""
    return f"observation {always[0]} of the data"


def _check_score(target, points: np.ndarray, seen: Seen, sigma=None) -> str:
    what = "gradient of your log density" if target.has_density else "score you gave"
    level = "" if sigma is None else f" at sigma = {sigma:g}"
    # Where the density itself is on the verge of overflow its gradient may be over it.
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


def _check_coordinates(target, points: np.ndarray, seen: Seen) -> str:
    good = np.isfinite(seen.score).all(axis=1) & np.isfinite(seen.values)
    silent = np.flatnonzero(np.all(seen.score[good] == 0, axis=0))
    for index in silent:
        name = target.names[index]
        if not target.has_density:
            raise DensityError(
                f"The score you gave is 0 in the coordinate {name!r} at every point: "
                "nothing would hold the draws there."
            )
        step = np.eye(target.dim)[index]
        start = points[good][0]
        moved = [start + t * step for t in (0.0, 0.5, -0.5, *probing.DISTANCES)]
        values = evaluate(probing.thin(target), np.stack(moved)).values
        if np.all(values == values[0]):
            other = "lower dim" if functions.is_vector(target) else "leave it out"
            raise DensityError(
                f"The density ignores the coordinate {name!r}: use it or {other}, for "
                "draws would run away in it."
            )
        if np.any(values[1:3] != values[0]):
            raise DensityError(
                f"The gradient in the coordinate {name!r} is 0 at every point, though "
                "the density changes with it: look for stop_gradient, rounding or a "
                "cast to integers."
            )
    return "Every coordinate matters."


def _check_falls(target, rng, points: np.ndarray, seen: Seen) -> str:
    # Few data raise a suspicion at little cost; all of them must confirm it.
    few = probing.thin(target)
    flat = probing.flat_directions(few, rng, points, seen)
    if flat and few is not target:
        flat = probing.flat_directions(target, rng, points, seen)
    if not flat:
        return "It falls in every direction looked along."
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
