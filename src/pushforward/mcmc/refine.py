"""`refine`: exactness bought by moves, by MALA or by proposals of a sampler."""

from typing import Any, Protocol, overload, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from pushforward._validate import whole_number
from pushforward.errors import UsageError
from pushforward.mcmc.mala import mala
from pushforward.sampler import Sampler
from pushforward.targets.arguments import as_target, one_key
from pushforward.targets.base import AbstractTarget

# Fewer steps have no two halves to compare.
_LEAST_STEPS = 4


@runtime_checkable
class Proposal(Protocol):
    """A distribution over the user's parameters whose own density is known."""

    def sample_and_log_prob(self, key: Any, shape: Any) -> Any:
        """Draws, and the log density at each."""
        ...

    def log_prob(self, x: Any) -> Any:
        """The log density at points."""
        ...


class Refined(eqx.Module):
    """Draws after independence Metropolis, and how the chains moved.

    Attributes:
        draws: The last point of each chain, in the user's own tree.
        acceptance: The share of all proposals that was accepted.
        stuck: The share of chains that never moved.
        rhat: The largest split R-hat of the unconstrained coordinates and of the log
            density; `inf` where nothing moved. Above 1.01 the chains have not mixed:
            the proposal is too thin somewhere, or more steps are needed. A mode that
            the proposal lacks does not show in it.
        evaluations: The number of log densities that were computed.
    """

    draws: Any
    acceptance: Float[Array, ""]
    stuck: Float[Array, ""]
    rhat: Float[Array, ""]
    evaluations: int = eqx.field(static=True)


@overload
def refine(
    key: PRNGKeyArray, target: AbstractTarget, draws: Any, steps: int
) -> Any: ...


@overload
def refine(
    key: PRNGKeyArray,
    target: AbstractTarget,
    draws: Any,
    steps: int,
    *,
    proposal: Any,
) -> Refined: ...


def refine(
    key: PRNGKeyArray,
    target: AbstractTarget,
    draws: Any,
    steps: int,
    *,
    proposal: Any = None,
) -> Any:
    """Moves draws closer to the target by `steps` Metropolis steps from each of them.

    Without a proposal these are steps of MALA, preconditioned by the covariance of the
    draws, so there must be more draws than coordinates: fewer could only move within
    the space that they span.

    With one they are steps of independence Metropolis: a chain with log weight
    `w = log q - log p` moves to a draw of the proposal p with probability
    `min(1, exp(w' - w))`. It leaves the target exactly as it is, and jumps between
    modes as freely as the proposal does.

    Args:
        key: Random key.
        target: A target with a log density.
        draws: Draws in the user's own tree, as `Sampler.sample` returns them.
        steps: How many steps; each costs one evaluation of the score per draw, or with
            a proposal one of the log density.
        proposal: A sampler whose own density is known, or any other object with
            `sample_and_log_prob(key, shape)` and `log_prob(x)` over the same
            parameters, such as a distribution of flowjax.

    Returns:
        As many draws, closer to the target; with a proposal a `Refined`, which holds
        them as `.draws`.

    Raises:
        UsageError: The target has no density, or there are too few draws, or the
            proposal has no density.
    """
    key, target = one_key(key), as_target(target)
    target.require_density("refine")
    least = 0 if proposal is None else _LEAST_STEPS
    steps = whole_number("steps", steps, least=least, most=2**31 - 1)
    flat = target.structure.flatten_draws(draws)
    if proposal is not None:
        return _by_proposals(key, target, flat, steps, _checked(target, proposal))
    if len(flat) <= target.dim:
        raise UsageError(
            f"refine takes the scale of its proposals from the draws, and "
            f"{len(flat)} draws do not span {target.dim} coordinates; give at least "
            f"{target.dim + 1}, better many more."
        )
    if steps == 0:
        return draws
    moved = mala(key, target, flat, steps).positions
    return jax.vmap(target.structure.unflatten)(moved)


def _checked(target: AbstractTarget, proposal: Any) -> Any:
    """The proposal, over unconstrained coordinates where it is a sampler."""
    if isinstance(proposal, Sampler):
        if not proposal.has_density:
            raise UsageError(
                "proposal needs a sampler whose own density is known, and this one "
                "adds noise or has a network that may fold; leave proposal out, for "
                "moves by MALA."
            )
        ours, theirs = proposal.structure, target.structure
        if (ours.treedef, ours.leaves) != (theirs.treedef, theirs.leaves):
            raise UsageError(
                "The proposal draws other parameters than the target has; give a "
                "sampler that was trained for it."
            )
        return proposal
    if not isinstance(proposal, Proposal):
        raise UsageError(
            "proposal must have sample_and_log_prob(key, shape) and log_prob(x), as a "
            f"sampler has, and a {type(proposal).__name__} has not."
        )
    return proposal


def _propose(key, target: AbstractTarget, proposal: Any, n: int):
    """Unconstrained draws of the proposal, and their log density there."""
    if isinstance(proposal, Sampler):
        return proposal.unconstrained().sample_and_log_prob(key, n)
    tree, log_p = proposal.sample_and_log_prob(key, (n,))
    u = target.structure.flatten_draws(tree)
    return u, jnp.asarray(log_p, u.dtype) + jax.vmap(target.structure.log_det)(u)


def _log_p(target: AbstractTarget, proposal: Any, u: Float[Array, "n d"]):
    """The log density of the proposal at unconstrained points."""
    if isinstance(proposal, Sampler):
        return proposal.unconstrained().log_prob(u)
    log_p = proposal.log_prob(jax.vmap(target.structure.unflatten)(u))
    return jnp.asarray(log_p, u.dtype) + jax.vmap(target.structure.log_det)(u)


@eqx.filter_jit
def _by_proposals(
    key: PRNGKeyArray,
    target: AbstractTarget,
    start: Float[Array, "n d"],
    steps: int,
    proposal: Any,
) -> Refined:
    n, half = start.shape[0], steps // 2

    def log_density(u):
        value = target.map(target.log_density, u)
        # What is not a number, or +inf, is no density.
        return jnp.where(jnp.isnan(value) | jnp.isposinf(value), -jnp.inf, value)

    def weight(log_q, log_p):
        return jnp.where(jnp.isnan(log_q - log_p), -jnp.inf, log_q - log_p)

    def step(carry, i):
        x, log_q, w, sums, squares, moved = carry
        draw_key, accept_key = jax.random.split(jax.random.fold_in(key, i))
        new, log_p = _propose(draw_key, target, proposal, n)
        new_log_q = log_density(new)
        new_w = weight(new_log_q, log_p)
        log_u = jnp.log(jax.random.uniform(accept_key, (n,), w.dtype))
        # A chain that starts where there is no density leaves it at once.
        accept = (log_u < new_w - w) | ((w == -jnp.inf) & (new_w > -jnp.inf))
        x = jnp.where(accept[:, None], new, x)
        log_q = jnp.where(accept, new_log_q, log_q)
        # For R-hat: sums over each half of each chain, of deviations from one point.
        seen = jnp.concatenate([x, log_q[:, None]], axis=1) - centre[None]
        at = i // half
        inside = (i < 2 * half).astype(x.dtype)
        sums = sums.at[at].add(inside * seen, mode="drop")
        squares = squares.at[at].add(inside * seen**2, mode="drop")
        moved = moved + accept.astype(moved.dtype)
        return (x, log_q, jnp.where(accept, new_w, w), sums, squares, moved), None

    log_q = log_density(start)
    w = weight(log_q, _log_p(target, proposal, start))
    known = jnp.where(jnp.isfinite(log_q), log_q, 0.0)
    centre = jnp.concatenate([jnp.mean(start, axis=0), jnp.mean(known)[None]])
    zero = jnp.zeros((2, n, len(centre)), start.dtype)
    first = start, log_q, w, zero, zero, jnp.zeros(n, start.dtype)
    (x, _, _, sums, squares, moved), _ = jax.lax.scan(step, first, jnp.arange(steps))
    means = (sums / half).reshape(2 * n, -1)
    variances = (squares / half).reshape(2 * n, -1) - means**2
    within = jnp.mean(variances, axis=0) * half / (half - 1)
    between = jnp.var(means, axis=0)
    ratio = (half - 1) / half + between / jnp.where(within > 0, within, 1.0)
    rhat = jnp.where(within > 0, jnp.sqrt(ratio), jnp.inf)
    return Refined(
        draws=jax.vmap(target.structure.unflatten)(x),
        acceptance=jnp.mean(moved) / steps,
        stuck=jnp.mean((moved == 0).astype(start.dtype)),
        rhat=jnp.max(jnp.where(jnp.isnan(rhat), jnp.inf, rhat)),
        evaluations=n * (steps + 1),
    )
