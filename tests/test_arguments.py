"""What callers hand over in place of what was meant; why a training broke down."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pushforward as pf
from pushforward import Sampler, Target, check, constrained, targets
from pushforward.diagnostics.reference import make_reference
from pushforward.errors import UsageError
from pushforward.networks import AffineMap
from pushforward.targets.arguments import as_key, as_target
from pushforward.targets.preconditioner import Preconditioner
from pushforward.training.divergence import explain_divergence

KEY = jax.random.key(0)


def test_keys_of_the_old_style():
    old = jax.random.PRNGKey(3)
    assert (jax.random.key_data(as_key(old)) == old).all()
    assert as_key(jax.random.split(old, 4)).shape == (4,)
    assert as_key(KEY) is KEY
    draws = np.random.default_rng(0).standard_normal((200, 2))
    target = targets.get("gaussian")
    verdicts = [check(k, target, draws, n=100) for k in (old, jax.random.key(3))]
    assert str(verdicts[0]) == str(verdicts[1])


@pytest.mark.parametrize("key", [0, None, targets.get("donut"), np.zeros(2)])
def test_no_key(key):
    with pytest.raises(UsageError, match="must be a random key, such as jax"):
        as_key(key)


def test_no_target():
    with pytest.raises(UsageError, match=r"got function; wrap .*Target\("):
        as_target(lambda x: -jnp.sum(x**2))
    with pytest.raises(UsageError, match="Expected a Target, got str; use "):
        as_target("donut")


def drawing(target, scale=1.0):
    """A sampler that draws from `scale` times a standard Gaussian."""
    whitening = Preconditioner.identity(target.dim)
    lower = jnp.float32(np.log(scale)) * jnp.eye(target.dim, dtype=jnp.float32)
    network = eqx.tree_at(lambda n: n.lower, AffineMap(target.dim), lower)
    return Sampler(network, whitening, target.structure)


def bounded(x):
    return jnp.where(jnp.all(jnp.abs(x) < 2), -jnp.sum(jnp.abs(x)), -jnp.inf)


def undefined(x):
    return -jnp.sum(x**2) - jnp.sqrt(x[0] + 2)


@pytest.mark.parametrize(
    ("function", "scale", "said"),
    [
        (bounded, 1.0, "the log density is -inf at 8.* bounds, give it a constraint"),
        (undefined, 1.0, "score in coordinate 'x.0.' is not .* such as x.0. = -2"),
        (undefined, 1.0, "there or, if this is a bound, give it a constraint"),
        (lambda x: -jnp.sum(x**2), jnp.nan, "own draws are not finite: lower the"),
        (
            lambda x: -jnp.sum(x**2),
            100.0,
            "have run away, to points such as .* finite inte",
        ),
        (lambda x: -jnp.sum(x**2), 1.0, None),
    ],
)
def test_what_broke_a_training(function, scale, said):
    target = Target(function, dim=2)
    found = explain_divergence(KEY, target, drawing(target, scale))
    if said is None:
        assert found is None
    else:
        assert found is not None
        assert re.search(said, found), found


def test_a_score_that_is_not_finite():
    def function(x):
        # The gradient of the part that is not taken is 0 times something infinite.
        return -jnp.sum(x**2) - jnp.where(x[1] > 0, jnp.sqrt(x[1]), 0.0)

    target = Target(function, dim=2)
    found = explain_divergence(KEY, target, drawing(target))
    assert found is not None and "the score in coordinate 'x[1]' is not finite" in found


def test_a_pole_on_the_bound_does_not_break_the_reference():
    """Beta(3/2, 1/2) has a pole at 1, where rounding would take half of a run."""

    def log_density(p):
        return 0.5 * jnp.log(p["p"]) - 0.5 * jnp.log1p(-p["p"]) - 0.5 * p["m"] ** 2

    target = constrained(
        log_density, {"p": "unit_interval"}, example={"p": 0.5, "m": 0.0}
    )
    made = make_reference(KEY, target, None, 500)
    assert not isinstance(made, str), made
    # E p = 3/4, its sd .25: of 8192 particles .02 are seven standard errors.
    p = 1 / (1 + np.exp(-made.draws[:, 1]))
    assert abs(p.mean() - 0.75) < 0.02


def density(x):
    return -0.5 * jnp.sum(x**2)


def plainly(function):
    """The function without the checks of its annotations, which only tests have."""
    return getattr(function, "__wrapped__", function)


def test_plausible_calls_work_or_get_a_sentence():
    """Each of them used to break somewhere inside."""
    target = targets.get("gaussian")
    sampler = drawing(target)
    draws, keys = sampler.sample(KEY, 40), jax.random.split(KEY, 3)
    moved = plainly(pf.refine)(KEY, target, draws, np.int64(3))
    assert jnp.array_equal(moved, pf.refine(KEY, target, draws, 3))
    batches = plainly(Sampler.iter_batches)
    assert next(batches(sampler, KEY, np.int64(5), np.int64(3))).shape == (3, 2)
    sample, refine, explore, fit, train, many, made = map(
        plainly,
        (
            Sampler.sample,
            pf.refine,
            pf.explore,
            pf.fit,
            pf.train,
            pf.fit_many,
            Sampler.from_network,
        ),
    )
    gaussian = pf.methods.Gaussian(steps=2, batch_size=8)
    for call, sentence in (
        (lambda: refine(KEY, density, draws, 3), "Expected a Target, got function"),
        (lambda: refine(KEY, target, draws, 3.0), "steps must be a whole number"),
        (lambda: refine(KEY, target, draws, 10**30), "steps must be at most"),
        (lambda: refine(keys, target, draws, 3), "A single random key is needed"),
        (lambda: explore(KEY, density), "Expected a Target, got function"),
        (lambda: explore(keys, target), "A single random key is needed"),
        (lambda: explore(KEY, target, max_evaluations=1e5), "whole number"),
        (lambda: sample(sampler, keys, 5), "A single random key is needed"),
        (lambda: fit(keys, target), "A single random key is needed"),
        (lambda: fit(KEY, target, checkpoint_seconds="a"), "checkpoint_seconds must"),
        (lambda: train(KEY, draws, gaussian), "methods of samplers are for fit"),
        (lambda: many(keys, density), "Expected a Target, got function"),
        (lambda: batches(sampler, KEY, (5, 2)), "n must be a whole number"),
        (lambda: batches(sampler, KEY, 5, 0), "size must be a whole number"),
        (lambda: made(5), "The network must be a module with in_size"),
        (lambda: made(AffineMap(2), noise_scale=np.nan), "noise_scale must be a fin"),
        (lambda: made(AffineMap(2), target=density), "Expected a Target"),
        (lambda: sampler.log_prob("a"), "The points must be numbers"),
        (lambda: plainly(pf.constraints.interval)("a", 1), "bounds of interval must"),
        (lambda: plainly(pf.constraints.less_than)(None), "bounds of less_than must"),
        (lambda: constrained(density, "positive"), "dim="),
    ):
        with pytest.raises(UsageError, match=sentence):
            call()
