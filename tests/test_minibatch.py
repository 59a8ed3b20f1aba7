"""Posteriors seen through minibatches: unbiased, and exact at the control variate."""

import functools
import math
from collections import Counter

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pushforward import fit, methods, networks
from pushforward.errors import UsageError
from pushforward.mcmc.initialise import initialise
from pushforward.objectives import Noise
from pushforward.targets import MinibatchTarget
from pushforward.targets.minibatch import sampling_table

N, BATCH = 4, 2
RNG = np.random.default_rng(0)
INPUTS, LABELS = RNG.normal(size=(N, 2)), np.array([1.0, 0.0, 1.0, 1.0])
POINTS = RNG.normal(size=(5, 3))
CENTRE = np.array([0.3, -0.5, 0.8])


def logistic(data):
    """Logistic regression with parameters that are a tree."""

    def log_likelihood(p, datum):
        logit = jnp.sum(p["slope"] * datum["x"]) + p["intercept"]
        return datum["y"] * logit - jax.nn.softplus(logit)

    return MinibatchTarget(
        lambda p: -0.5 * jnp.sum(p["slope"] ** 2) - 0.1 * p["intercept"] ** 4,
        log_likelihood,
        data,
        example={"slope": np.zeros(2), "intercept": 0.0},
        batch_size=BATCH,
    )


def target():
    return logistic({"x": INPUTS, "y": LABELS})


def exact_score(x):
    """The full score at one point, in NumPy: coordinates are intercept, slope."""
    logits = INPUTS @ x[1:] + x[0]
    errors = LABELS - 1 / (1 + np.exp(-logits))
    return np.array([errors.sum() - 0.4 * x[0] ** 3, *(errors @ INPUTS - x[1:])])


@functools.cache
def batches():
    """A key for every minibatch there is, and the probability to draw it.

    What a key picks is told by a likelihood that is linear in the parameters: there the
    score counts the observations. Picks depend on the key and on sizes alone, not on
    the precision.
    """
    counting = MinibatchTarget(
        lambda x: 0.0 * x[0],
        lambda x, datum: jnp.sum(x * datum),
        np.eye(N),
        dim=N,
        batch_size=BATCH,
    )
    keys = jax.random.split(jax.random.key(0), 4000)
    at = jnp.zeros(N)
    scores = jax.jit(jax.vmap(lambda key: counting.score(at, key=key)))(keys)
    counts = np.rint(np.asarray(scores) * BATCH / N).astype(int)
    assert np.all(counts.sum(axis=1) == BATCH)
    seen = Counter(map(tuple, counts))
    # With replacement: N + BATCH - 1 over BATCH kinds, multinomial probabilities.
    assert len(seen) == math.comb(N + BATCH - 1, BATCH)
    probabilities = {
        kind: math.factorial(BATCH) / math.prod(map(math.factorial, kind)) / N**BATCH
        for kind in seen
    }
    first = {kind: i for i, kind in reversed(list(enumerate(map(tuple, counts))))}
    chosen = keys[np.array([first[kind] for kind in seen])]
    return chosen, np.array(list(probabilities.values())), np.array(list(seen.values()))


def test_minibatches_are_drawn_uniformly():
    """10 kinds of minibatch among 4000, each with a share p +- sqrt(p (1 - p) / 4000).

    5 standard errors: one of them fails by chance with probability 6e-6.
    """
    _, probabilities, seen = batches()
    assert probabilities.sum() == pytest.approx(1)
    error = np.sqrt(probabilities * (1 - probabilities) / 4000)
    assert np.all(np.abs(seen / 4000 - probabilities) < 5 * error)


@pytest.mark.usefixtures("x64")
@pytest.mark.once
class TestScore:
    @pytest.mark.parametrize("centred", [False, True])
    def test_without_a_key_it_is_full(self, centred):
        seen = target()
        if centred:
            seen = eqx.filter_jit(seen.with_control_variate)(jnp.asarray(CENTRE))

        @jax.jit
        @jax.vmap
        def both(x):
            return seen.score(x), jax.grad(seen.log_density)(x)

        score, gradient = both(jnp.asarray(POINTS))
        np.testing.assert_allclose(score, gradient, rtol=1e-12)
        expected = [exact_score(x) for x in POINTS]
        np.testing.assert_allclose(score, expected, rtol=1e-10)

    @pytest.mark.parametrize("centred", [False, True])
    def test_the_mean_over_all_minibatches_is_full(self, centred):
        seen = target()
        if centred:
            seen = eqx.filter_jit(seen.with_control_variate)(jnp.asarray(CENTRE))
        keys, probabilities, _ = batches()
        score = jax.vmap(lambda x, key: seen.score(x, key=key), (None, 0))
        scores = np.asarray(
            jax.jit(jax.vmap(score, (0, None)))(jnp.asarray(POINTS), keys)
        )
        assert np.ptp(scores, axis=1).min() > 1e-3, "minibatches do not differ"
        mean = np.einsum("b,pbd->pd", probabilities, scores)
        expected = [exact_score(x) for x in POINTS]
        np.testing.assert_allclose(mean, expected, rtol=1e-10)

    def test_the_control_variate_is_exact_at_its_centre_and_good_near_it(self):
        plain = target()
        centred = eqx.filter_jit(plain.with_control_variate)(jnp.asarray(CENTRE))
        keys, probabilities, _ = batches()

        @jax.jit
        def scores(x):
            return [
                jax.vmap(lambda key, seen=seen: seen.score(x, key=key))(keys)
                for seen in (plain, centred)
            ]

        def noise(x):
            expected = exact_score(x)
            return [
                probabilities @ np.sum((np.asarray(s) - expected) ** 2, axis=1)
                for s in scores(jnp.asarray(x))
            ]

        at = noise(CENTRE)
        assert at[0] > 0.1
        assert at[1] < 1e-25
        # The noise is a difference of scores: quadratic in the distance.
        step = np.array([0.01, -0.01, 0.01])
        near, nearer = noise(CENTRE + step)[1], noise(CENTRE + step / 10)[1]
        assert near < 1e-3 * at[0]
        assert near / nearer == pytest.approx(100, rel=0.1)


def test_two_keys_differ_and_one_key_repeats():
    seen = target()
    x = jnp.zeros(3)
    score = jax.jit(lambda key: seen.score(x, key=key))
    keys = jax.random.split(jax.random.key(1), 8)
    found = np.stack([score(key) for key in keys])
    assert len(np.unique(found, axis=0)) > 1
    np.testing.assert_array_equal(score(keys[0]), found[0])


def test_data_are_arguments_of_compiled_programs():
    traces = []

    @eqx.filter_jit
    def score(seen, x):
        traces.append(1)
        return seen.score(x)

    first = target()
    other = eqx.tree_at(lambda t: t.data["x"], first, 2 * first.data["x"])
    found = [score(seen, jnp.zeros(3)) for seen in (first, other)]
    assert len(traces) == 1
    assert not np.allclose(*found)


def test_sizes():
    seen = target()
    assert (seen.num_terms, seen.batch_size, seen.dim) == (N, BATCH, 3)
    assert seen.names == ("intercept", "slope[0]", "slope[1]")
    large = MinibatchTarget(jnp.sum, lambda x, y: jnp.sum(x * y), np.zeros((3, 2)), 2)
    assert large.batch_size == 3
    assert seen.why_no_density() is None
    assert "sum over 4 observations" in seen.why_no_values()
    assert seen.evaluation_cost(2) == 2


class TestBadData:
    @pytest.mark.parametrize(
        ("data", "axes"),
        [
            ({"x": np.zeros((3, 2)), "y": np.zeros(4)}, r"\[\(3,\), \(4,\)\]"),
            ({"x": np.zeros((3, 2)), "n": 3.0}, r"\[\(\), \(3,\)\]"),
            (1.0, r"\[\(\)\]"),
            ({}, r"\[\]"),
        ],
        ids=["lengths", "number", "scalar", "nothing"],
    )
    def test_no_common_leading_axis(self, data, axes):
        with pytest.raises(UsageError, match=f"one common leading axis.* are {axes}"):
            MinibatchTarget(jnp.sum, jnp.sum, data, 2)

    def test_no_observations(self):
        with pytest.raises(UsageError, match="there are 0 of them"):
            MinibatchTarget(jnp.sum, jnp.sum, np.zeros((0, 2)), 2)

    @pytest.mark.parametrize("size", [0, -1])
    def test_empty_minibatches(self, size):
        with pytest.raises(UsageError, match=f"batch_size is {size}"):
            MinibatchTarget(jnp.sum, jnp.sum, np.zeros((3, 2)), 2, batch_size=size)


def test_picks_follow_importance_and_stay_unbiased():
    importance = jnp.array([0.0, 1.0, 3.0, 16.0])
    whole = target()
    picking = whole.with_importance_sampling(importance)
    counts = np.diff(np.asarray(picking.variance_reduction.sampling_table), prepend=0)
    # Half alike, half in proportion: 1/8 + importance / 40.
    expected = 1 / 8 + np.asarray(importance) / 40
    np.testing.assert_allclose(counts / counts.sum(), expected, rtol=1e-6)
    keys = jax.random.split(jax.random.key(0), 20_000)
    chosen, weights = jax.jit(jax.vmap(picking._draw_minibatch))(keys)
    found = np.bincount(np.asarray(chosen).ravel(), minlength=N) / chosen.size
    # 40,000 picks: five standard deviations of a share are at most .0125.
    np.testing.assert_allclose(found, expected, atol=0.0125)
    np.testing.assert_allclose(
        weights, 1 / (N * expected[np.asarray(chosen)]), rtol=1e-5
    )
    x = jnp.asarray(POINTS[0])
    for of in (picking, picking.with_control_variate(jnp.asarray(CENTRE))):
        scores = np.asarray(jax.jit(jax.vmap(lambda k, t=of: t.score(x, key=k)))(keys))
        error = scores.std(axis=0) / len(keys) ** 0.5
        # Five standard errors, and the rounding of a mean in 32-bit.
        gap = np.abs(scores.mean(axis=0) - exact_score(POINTS[0]))
        assert (gap < 5 * error + 1e-4).all()


def test_what_the_user_gave_stays_without_whitening():
    given = (
        target()
        .with_importance_sampling(jnp.ones(N))
        .with_control_variate(jnp.asarray(CENTRE))
    )
    config = methods.TrainConfig(whiten=False, particles=8)
    seen = config.initialise(jax.random.key(0), given)
    found = seen.precondition(given).target.variance_reduction
    assert found.centre is given.variance_reduction.centre
    assert found.sampling_table is given.variance_reduction.sampling_table
    # What an initialisation finds goes first.
    own = initialise(jax.random.key(0), given, particles=8).precondition(given).target
    gap = own.variance_reduction.centre - given.variance_reduction.centre
    assert float(jnp.max(jnp.abs(gap))) > 0


TINY = {
    "network": networks.residual(8, 1),
    "steps": 3,
    "batch_size": 8,
    "whiten": False,
}


@pytest.mark.parametrize(
    ("method", "each"),
    [
        (methods.DFT(**TINY), 4),
        (methods.DFT(w1=0.0, **TINY), 2),
        (methods.KL(noise=Noise(antithetic=False), **TINY), 1),
    ],
)
def test_two_minibatches_are_two_evaluations(method, each):
    found = fit(jax.random.key(0), target(), method, progress=False)
    assert found.evaluations == 3 * 8 * each


def test_equal_or_no_importance_picks_alike():
    for importance in (jnp.zeros(3), jnp.full(3, 7.0)):
        counts = np.diff(np.asarray(sampling_table(importance)), prepend=0)
        assert counts.min() == counts.max() > 1e8


def test_a_row_that_is_alone_is_seen_often():
    """999 rows speak of one coordinate, a single row of the other."""
    x = np.zeros((1000, 2))
    x[:999, 0], x[999, 1] = 1.0, 1.0
    data = {"x": jnp.asarray(x), "y": jnp.asarray(np.arange(1000) % 2, float)}

    def log_likelihood(w, datum):
        logit = jnp.sum(w * datum["x"])
        return datum["y"] * logit - jax.nn.softplus(logit)

    posterior = MinibatchTarget(
        lambda w: -0.5 * jnp.sum(w**2), log_likelihood, data, dim=2, batch_size=20
    )
    seen = initialise(jax.random.key(0), posterior, particles=64)
    assert seen.variance_reduction.sampling_table is not None
    counts = np.diff(np.asarray(seen.variance_reduction.sampling_table), prepend=0)
    # In units of the posterior it tells .2, the others .001 each: it should be one in
    # twelve of all picks, give or take the few directions tried, and not one in 1000.
    assert 0.02 < counts[999] / counts.sum() < 0.25
    plain = eqx.tree_at(
        lambda s: s.variance_reduction.sampling_table,
        seen,
        None,
        is_leaf=lambda leaf: leaf is None,
    )
    keys = jax.random.split(jax.random.key(1), 4000)
    u = jnp.array([0.5, 0.5])

    def spread(view):
        scores = jax.jit(jax.vmap(lambda k: view.score(u, key=k)))(keys)
        return np.asarray(scores)[:, 1].std()

    assert spread(seen.precondition(posterior)) < 0.3 * spread(
        plain.precondition(posterior)
    )
