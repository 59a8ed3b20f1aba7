"""The methods' mathematics against closed forms and direct computations."""

import dataclasses
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats

import pushforward as pf
from pushforward import methods, networks, objectives
from pushforward.diagnostics import ksd
from pushforward.errors import UsageError
from pushforward.networks.mixture_fit import fit_mixture, merge, reweigh
from pushforward.networks.specs import mixture_map
from pushforward.objectives.draws import scores_at
from pushforward.objectives.ksd import u_statistic
from pushforward.objectives.reverse_kl import ReverseKL, reverse_kl_loss
from pushforward.objectives.stein_critic import objective, stein_mean
from pushforward.objectives.stein_kernel import stein_kernel
from pushforward.objectives.steingan import bandwidth, stein_direction

NORMAL = pf.Target(lambda x: -0.5 * jnp.sum(x**2), dim=2)


def draws(n, dim, seed=0):
    return jax.random.normal(jax.random.key(seed), (n, dim))


# Fisher


def test_fisher_is_dft_in_its_divergence_form_without_noise():
    """Value and gradient at a point; the conditional score must not be looked at."""
    x, target = jnp.array([0.3, -1.2]), pf.targets.get("banana")
    assert methods.Fisher().objective.noise.scale == 0.0
    fisher = objectives.Fisher()

    def score(x):
        return jnp.sin(x) - 2 * x

    def loss(x):
        a, s = target.score(x), score(x)
        divergences = jnp.trace(jax.jacfwd(target.score)(x) - jax.jacfwd(score)(x))
        return jnp.sum(a**2) - jnp.sum(s**2) + 2 * divergences

    nothing = jnp.full(2, jnp.nan)
    fields = (score, target.score, target.score)
    value, gradient = jax.jit(
        jax.value_and_grad(lambda x: fisher(x, nothing, *fields))
    )(x)
    expected, expected_gradient = jax.jit(jax.value_and_grad(loss))(x)
    np.testing.assert_allclose(value, expected, rtol=1e-4)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4)
    # DFT's own objective, bit for bit.
    dft = objectives.DFT(form="divergence")
    same = jax.jit(jax.value_and_grad(lambda x: dft(x, nothing, *fields)))(x)
    np.testing.assert_array_equal(same[0], value)
    np.testing.assert_array_equal(same[1], gradient)


def test_fisher_refuses_to_denoise():
    with pytest.raises(UsageError, match="no noise to denoise"):
        methods.Fisher(estimator="denoising")
    methods.Fisher(estimator="sliced")


# KSD


@pytest.mark.parametrize(("dim", "c", "beta"), [(2, 1.0, -0.5), (7, 2.0, -0.3)])
def test_the_ksd_loss_is_the_diagnostics_u_statistic(dim, c, beta):
    # Far from zero, where expanded squares would cancel.
    x, scores = 30.0 + draws(50, dim), draws(50, dim, seed=1)
    expected = ksd(x, scores, c=c, beta=beta).u
    np.testing.assert_allclose(
        u_statistic(x, scores, c=c, beta=beta), expected, rtol=1e-3, atol=1e-5
    )


def test_the_ksd_loss_has_the_gradient_of_its_pairs():
    """Through the points and through their scores, against one pair at a time."""
    x = draws(6, 3)

    def score(x):
        return -x - jnp.sin(x)

    def direct(x):
        pairs = [(i, j) for i in range(6) for j in range(6) if i != j]
        i, j = np.array(pairs).T
        s = score(x)
        return jnp.mean(jax.vmap(stein_kernel)(x[i], x[j], s[i], s[j]))

    gradient = jax.jit(jax.grad(lambda x: u_statistic(x, score(x))))(x)
    expected = jax.jit(jax.grad(direct))(x)
    np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-5)


def test_the_ksd_loss_is_unbiased_through_minibatches():
    """A minibatch for each point; one for all would add the gradient of its variance.

    The data are a few far apart and the minibatch a single one of them, so that the
    bias of a shared minibatch is as large as the gradient itself.
    """
    target = pf.MinibatchTarget(
        lambda m: -0.5 * jnp.sum(m**2),
        lambda m, y: -0.5 * jnp.sum((m - y) ** 2),
        jnp.array([[-1.0, 0.5], [1.0, 0.0], [0.5, -1.0]]),
        dim=2,
        batch_size=1,
    )
    x, n = draws(4, 2), 4000

    def gradient(scores):
        return jax.grad(lambda x: u_statistic(x, scores(x)))(x)

    def own(key):
        return gradient(lambda x: scores_at(target, x, key))

    def shared(key):
        return gradient(lambda x: jax.vmap(lambda x: target.score(x, key=key))(x))

    full = jax.jit(lambda: gradient(jax.vmap(lambda x: target.score(x))))()
    keys = jax.random.split(jax.random.key(3), n)

    def distance(estimator):
        """From the mean of the estimates to the full gradient, in standard errors."""
        values = jax.jit(jax.vmap(estimator))(keys)
        errors = jnp.std(values, axis=0) / n**0.5
        return float(jnp.max(jnp.abs(values.mean(axis=0) - full) / errors))

    # The largest of 8 standard normal numbers is below 4.5 but once in 20,000.
    assert distance(own) < 4.5
    assert distance(shared) > 20


# SteinGAN


def test_the_stein_direction_is_the_double_sum():
    x, scores = np.asarray(draws(9, 3)) + 5, np.asarray(draws(9, 3, seed=1))
    h = float(bandwidth(jnp.asarray(x)))
    squared = [np.sum((a - b) ** 2) for i, a in enumerate(x) for b in x[:i]]
    np.testing.assert_allclose(h, np.median(squared), rtol=1e-4)
    svgd = bandwidth(jnp.asarray(x), "svgd")
    np.testing.assert_allclose(svgd, np.median(squared) / np.log(9), rtol=1e-4)
    expected = np.zeros_like(x)
    for i in range(9):
        top, bottom = np.zeros(3), 0.0
        for j in range(9):
            k = np.exp(-np.sum((x[j] - x[i]) ** 2) / h)
            top += k * scores[j] - 2 / h * (x[j] - x[i]) * k
            bottom += k
        expected[i] = top / bottom
    found = stein_direction(jnp.asarray(x), jnp.asarray(scores), jnp.asarray(h))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_the_stein_direction_vanishes_at_the_optimum():
    """For exact draws there is noise and the self-term; elsewhere it points home."""

    @jax.jit
    def outward(x):
        """`E[delta . x] / d`: how the draws' variance would change."""
        return jnp.mean(stein_direction(x, -x, bandwidth(x)) * x)

    x = draws(1000, 2)
    # Seeds 0 to 9 give between -.024 and .019 here.
    assert abs(float(outward(x))) < 0.06
    assert float(outward(1.5 * x)) < -0.1
    assert float(outward(0.7 * x)) > 0.1


def test_the_kernel_of_particles_shrinks_a_sampler():
    """In 10 dimensions at .9 of the right width: out by "median", in by "svgd"."""
    x = 0.9 * draws(512, 10)

    @jax.jit
    def outward(x):
        return [
            jnp.mean(stein_direction(x, -x, bandwidth(x, name)) * x)
            for name in ("median", "svgd")
        ]

    median, svgd = outward(x)
    # Seeds 0 to 5: at least .010, and at most -.126.
    assert float(median) > 0.005
    assert float(svgd) < -0.06


def test_the_steingan_loss_moves_draws_along_the_direction():
    """For `g(z) = m + z` the gradient in `m` is minus the mean direction."""
    steingan = objectives.SteinGAN()
    network = eqx.tree_at(
        lambda a: a.mean, networks.AffineMap(2), jnp.array([1.0, -0.5], jnp.float32)
    )
    key = jax.random.key(5)

    def loss(network):
        return steingan(network, NORMAL, key, 64, jnp.zeros(()))

    gradient = eqx.filter_jit(eqx.filter_grad(loss))(network)
    z = jax.random.normal(jax.random.split(key)[0], (64, 2), jnp.float32)
    x = jax.vmap(network)(z).astype(jnp.result_type(float))
    delta = stein_direction(x, -x, bandwidth(x, "svgd"))
    np.testing.assert_allclose(gradient.mean, -delta.mean(axis=0), rtol=1e-4, atol=1e-6)


# The critic


class Linear(networks.AbstractNetwork):
    matrix: jax.Array
    in_size: int = 3
    out_size: int = 3

    def __call__(self, x):
        return self.matrix @ x


def test_the_best_critic_is_the_difference_of_the_scores():
    """`p = N(0, S)`, `q = N(0, I)`: `f = (S^-1 - I) x / (2 penalty)`.

    Among linear fields the objective is quadratic in the matrix and knows the draws by
    their second moments, which are made exact here: equalities hold to rounding.
    """
    penalty = 0.7
    target = pf.Target(lambda x: -0.5 * jnp.sum(x**2), dim=3)
    z = np.asarray(draws(40, 3), np.float64)
    z = jnp.asarray(z @ np.linalg.inv(np.linalg.cholesky(z.T @ z / 40)).T, jnp.float32)
    factor = np.array([[0.6, 0, 0], [0.2, 0.8, 0], [-0.1, 0.3, 0.5]])
    best = (np.linalg.inv(factor @ factor.T) - np.eye(3)) / (2 * penalty)
    best, factor = (jnp.asarray(a, jnp.float32) for a in (best, factor))

    def value(matrix, factor):
        x = z @ factor.T
        return objective(Linear(matrix), target, x, jax.random.key(0), penalty)

    def fisher(factor):
        covariance = factor @ factor.T
        return jnp.trace(jnp.linalg.inv(covariance) + covariance) - 6

    at_best = jax.grad(value)(best, factor)
    assert float(jnp.max(jnp.abs(at_best))) < 2e-4
    elsewhere = jax.grad(value)(jnp.eye(3, dtype=jnp.float32), factor)
    assert float(jnp.max(jnp.abs(elsewhere))) > 0.1
    # What it reaches, and what the sampler then follows: the Fisher divergence.
    exact = jax.value_and_grad(lambda factor: fisher(factor) / (4 * penalty))(factor)
    found = jax.value_and_grad(value, argnums=1)(best, factor)
    np.testing.assert_allclose(found[0], exact[0], rtol=1e-4)
    np.testing.assert_allclose(found[1], exact[1], rtol=1e-3, atol=1e-4)


def test_the_critics_divergence_in_many_dimensions_is_unbiased():
    dim = 20
    target = pf.Target(lambda x: -0.5 * jnp.sum(x**2), dim=dim)
    critic = Linear(draws(dim, dim).astype(jnp.float32), dim, dim)
    x = draws(400, dim, seed=1).astype(jnp.float32)
    found = stein_mean(critic, target, x, jax.random.key(1))
    inner = -jnp.einsum("ni,ij,nj->n", x, critic.matrix, x).mean()
    exact = inner + jnp.trace(critic.matrix)
    # Rademacher: the variance of v'Av is that of its off-diagonal entries.
    off = critic.matrix + critic.matrix.T
    deviation = float(jnp.sqrt(jnp.sum(jnp.triu(off, 1) ** 2) / 400))
    assert abs(float(found - exact)) < 4.5 * deviation
    assert deviation < 2


# Reverse KL on maps with a density


def test_reverse_kl_through_scores_has_the_gradient_of_the_density():
    """The linearised loss of a score-only target, against the loss itself."""
    target = pf.targets.get("banana")
    known = pf.ScoreTarget(target.score, dim=2)
    mixture = jnp.zeros(1), jnp.zeros((1, 2)), jnp.eye(2)[None]
    network = mixture_map(jax.random.key(0), mixture, 4, 1, layers=2)
    key, half = jax.random.key(1), jnp.asarray(0.7)

    def gradient(target):
        def loss(network):
            return ReverseKL()(network, target, key, 16, half)

        return eqx.filter_jit(eqx.filter_grad(loss))(network)

    value, by_score = gradient(target), gradient(known)
    for a, b in zip(jax.tree.leaves(value), jax.tree.leaves(by_score), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("x64")
def test_what_an_affine_map_pushes_forward():
    """Its log density and score, against those of the normal that it makes."""
    map = networks.AffineMap(3)
    lower = 0.3 * draws(3, 3, seed=4).astype(float)
    map = eqx.tree_at(lambda m: (m.mean, m.lower), map, (lower[0], lower))
    x, log_p, score, log_weight = map.push_latents(draws(5, 3).astype(float))
    factor = np.asarray(map.factor)

    def log_density(x):
        return jax.scipy.stats.multivariate_normal.logpdf(
            x, map.mean, factor @ factor.T
        )

    np.testing.assert_allclose(log_p, jax.vmap(log_density)(x), rtol=1e-10)
    slopes = jax.vmap(jax.grad(log_density))(x)
    np.testing.assert_allclose(score, slopes, rtol=1e-8)
    np.testing.assert_array_equal(log_weight, 0.0)


def test_reverse_kl_of_a_normal_against_itself_has_no_gradient():
    """Pairs of points or not: along paths there is no noise left at the optimum."""
    key, start = jax.random.key(0), jnp.zeros(())
    for antithetic in (False, True):

        def loss(network, antithetic=antithetic):
            objective = objectives.ReverseKL(antithetic)
            return objective(network, NORMAL, key, 16, start)

        gradient = eqx.filter_jit(eqx.filter_grad(loss))(networks.AffineMap(2))
        for leaf in jax.tree.leaves(gradient):
            np.testing.assert_allclose(leaf, 0.0, atol=1e-6)


def test_reverse_kl_needs_an_invertible_map():
    for network, sentence in (
        (networks.residual(width=4, depth=1), "whose density is known"),
        (networks.mixture(layers=0, width=4, depth=1), "layers must be at least 1"),
    ):
        method = methods.Transport(network=network, steps=2, batch_size=16)
        with pytest.raises(UsageError, match=sentence):
            pf.fit(jax.random.key(0), NORMAL, method, progress=False)


def test_one_coordinate_cannot_be_coupled():
    line = pf.Target(lambda x: -0.5 * jnp.sum(x**2), dim=1)
    with pytest.raises(UsageError, match="only one; use the method Transport"):
        methods.Flow().resolve(line)


def test_every_component_has_its_share_of_a_batch():
    """To within one point, for any weights; and each point alone is standard normal."""
    network = networks.MixtureMap(3, 4, 1, 4, layers=2, key=jax.random.key(0))
    weights = jnp.array([0.5, 0.25, 0.2, 0.05], jnp.float32)
    network = eqx.tree_at(lambda n: n.logits, network, jnp.log(weights))

    def batch(key):
        z = network.latents(key, 40)
        return z, jax.vmap(network.component)(z[:, -1])

    z, chosen = jax.vmap(batch)(jax.random.split(jax.random.key(1), 500))
    counts = np.asarray(jax.vmap(lambda c: jnp.bincount(c, length=4))(chosen))
    assert (np.abs(counts - 40 * np.asarray(weights)) < 1.0 + 1e-3).all()
    # 20,000 numbers: the 99.99 % point of the Kolmogorov distribution.
    for column in z.reshape(-1, 3).T:
        distance = scipy.stats.kstest(np.asarray(column), "norm").statistic
        assert distance < 2.23 / np.sqrt(z.size / 3)
    # So is every place in a batch: any part of the points is a sample.
    for place in (0, 9, 39):
        distance = scipy.stats.kstest(np.asarray(z[:, place, -1]), "norm").statistic
        assert distance < 2.23 / np.sqrt(500)


def test_particles_take_the_weights_of_the_target():
    """A sampler with other weights of two modes offers its draws, and does not learn.

    Particles come from the sampler: .6 of them in the first mode, where the target has
    .3. Every one of them, held out or not, is to follow the target alone.
    """
    dim, apart = 2, 8.0
    centres = jnp.array([[-apart / 2, 0.0], [apart / 2, 0.0]])

    def mixed(first):
        logs = jnp.log(jnp.array([first, 1 - first]))
        normal = jax.scipy.stats.norm.logpdf
        return lambda x: jax.nn.logsumexp(logs + normal(x[None] - centres).sum(1))

    target = pf.Target(mixed(0.3), dim=dim)
    method = methods.Adaptive(
        network=networks.mixture(components=2, layers=1, width=4, depth=1),
        optimiser=optax.set_to_zero(),
    ).resolve(target)
    mixture = (
        jnp.log(jnp.array([0.6, 0.4])),
        centres,
        jnp.tile(jnp.eye(dim), (2, 1, 1)),
    )
    empty = method.prepared(target)
    key, init_key = jax.random.split(jax.random.key(0))
    start = dataclasses.replace(empty, mixture=mixture)
    state = method.init(init_key, target, jnp.asarray(400), start)

    def sample(key, n):
        return jax.vmap(state.network)(state.network.latents(key, n))

    key, pool_key, held_key = jax.random.split(key, 3)
    state = dataclasses.replace(
        state,
        pool=sample(pool_key, len(empty.pool)),
        held=sample(held_key, len(empty.held)),
        improving=jnp.ones((), bool),
    )

    @jax.jit
    def run(state, key):
        def step(state, key):
            return method.step(key, target, state)[0], None

        return jax.lax.scan(step, state, jax.random.split(key, 400))[0]

    state = run(state, key)
    for particles in (state.pool, state.held):
        share = float(jnp.mean(particles[:, 0] < 0))
        # Four sds of independent particles.
        assert abs(share - 0.3) < 4 * np.sqrt(0.3 * 0.7 / len(particles))


def test_one_coupling_layer_is_that_of_flowjax():
    """The same weights in both: the point and the log determinant."""
    bijections = pytest.importorskip("flowjax.bijections")
    from paramax import Parameterize

    dim, bound = 5, 2.0
    ours = networks.CouplingMap(dim, 1, 8, 2, log_bound=bound, key=jax.random.key(0))
    ours = jax.tree.map(lambda a: 3 * a + 0.1, ours)
    kept = np.flatnonzero(ours.masks[0])
    moved = np.flatnonzero(ours.masks[0] == 0)
    order = np.concatenate([kept, moved])
    affine = eqx.tree_at(
        lambda a: (a.loc, a.scale),
        bijections.Affine(),
        (
            jnp.zeros((), jnp.float32),
            Parameterize(
                lambda t: jnp.exp(bound * jnp.tanh(t / bound)),
                jnp.zeros((), jnp.float32),
            ),
        ),
    )
    theirs = bijections.Coupling(
        jax.random.key(0),
        transformer=affine,
        untransformed_dim=len(kept),
        dim=dim,
        nn_width=8,
        nn_depth=2,
        nn_activation=jax.nn.silu,
    )
    weights = [w[0] for w in ours.weights]
    # Theirs sees the kept coordinates only, and gives (shift, scale) of each other one.
    weights[0] = weights[0][:, kept]
    rows = np.stack([moved + dim, moved], axis=1).ravel()
    weights[-2:] = [weights[-2][rows], weights[-1][rows]]
    theirs = eqx.tree_at(
        lambda c: [
            a for layer in c.conditioner.layers for a in (layer.weight, layer.bias)
        ],
        theirs,
        weights,
    )
    x = draws(6, dim, seed=2).astype(jnp.float32)
    y, log_det = jax.vmap(ours.with_log_det)(x)
    with jax.numpy_dtype_promotion("standard"):
        other, other_log_det = jax.vmap(theirs.transform_and_log_det)(x[:, order])
    np.testing.assert_allclose(y[:, order], other, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(log_det, other_log_det, rtol=1e-4, atol=1e-5)
    assert float(jnp.abs(log_det).max()) > 0.1


# Coupling layers of a mixture


@pytest.mark.parametrize("dim", [2, 5])
def test_coupling_layers_know_the_log_det_of_their_jacobian(dim):
    map = networks.CouplingMap(dim, 3, 8, 1, key=jax.random.key(0))
    x = draws(4, dim, seed=2).astype(jnp.float32)
    # They start at the identity ...
    np.testing.assert_allclose(jax.jit(jax.vmap(map))(x), x, atol=0.1)
    # ... and are a long way from it with larger weights.
    map = jax.tree.map(lambda a: 3 * a + 0.3, map)
    y, log_det = jax.jit(jax.vmap(map.with_log_det))(x)
    assert y.dtype == log_det.dtype == jnp.float32
    jacobian = np.asarray(jax.jit(jax.vmap(jax.jacfwd(map)))(x), np.float64)
    np.testing.assert_allclose(
        log_det, np.linalg.slogdet(jacobian)[1], rtol=1e-3, atol=1e-3
    )
    assert float(jnp.min(jnp.abs(log_det))) > 0.1


@pytest.mark.parametrize("dim", [2, 3, 10, 40, 64, 100])
def test_halves_part_every_two_coordinates(dim):
    layers = 2 * (dim - 1).bit_length()
    masks = networks.CouplingMap(dim, layers, 4, 1, key=jax.random.key(0)).masks
    np.testing.assert_array_equal(masks[::2] + masks[1::2], 1)
    # Halves, but for the places that a power of two leaves over.
    assert np.abs(masks.mean(axis=1) - 0.5).max() <= 0.2
    parted = np.einsum("li,lj->ij", masks, 1 - masks) > 0
    np.testing.assert_array_equal(parted, ~np.eye(dim, dtype=bool))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dim", [1, 2, 5])
def test_what_a_map_pushes_forward(dim):
    """The score at y is `J^-T` times the gradient of `log p(x) - log |det J(x)|`."""
    key = jax.random.key(0)
    if dim == 1:
        map = networks.ResidualMap(1, 1, 8, 1, key=key)
    else:
        map = networks.CouplingMap(dim, 5, 8, 1, key=key)
    map = jax.tree.map(lambda a: 3 * a.astype(float) + 0.3, map)

    def log_density(x):
        return -0.5 * jnp.sum(x**2)

    @jax.jit
    @jax.vmap
    def both(x):
        found = map.push(x, log_density(x), -x)
        log_p = lambda x: log_density(x) - map.with_log_det(x)[1]  # noqa: E731
        return found, (map(x), log_p(x), jax.grad(log_p)(x), jax.jacfwd(map)(x))

    found, (y, log_p, slope, jacobian) = both(draws(20, dim, seed=3).astype(float))
    np.testing.assert_allclose(found[0], y, rtol=1e-12)
    np.testing.assert_allclose(found[1], log_p, rtol=1e-9)
    turned = np.swapaxes(np.asarray(jacobian), 1, 2)
    expected = np.linalg.solve(turned, np.asarray(slope)[..., None])[..., 0]
    np.testing.assert_allclose(found[2], expected, rtol=1e-7, atol=1e-9)


def test_components_of_one_mode_become_one_normal():
    """Two at each of two modes, and one far out in the tail of the second."""

    def log_density(x):
        away = jnp.stack([jnp.sum((x + 6) ** 2), jnp.sum((x - 6) ** 2)])
        return jax.nn.logsumexp(-0.5 * jnp.sqrt(1 + away))

    means = jnp.array([[-6.5, -6], [-5.5, -6], [6, 6], [6, 6], [20, 20]]).astype(float)
    weights = jnp.array([0.1, 0.2, 0.3, 0.3, 0.1])
    factors = jnp.tile(jnp.eye(2), (5, 1, 1))
    logits, centres, roots = jax.jit(lambda m: merge(log_density, m))(
        (jnp.log(weights), means, factors)
    )
    found = np.exp(logits)
    np.testing.assert_allclose(found, [0.15, 0.15, *[0.7 / 3] * 3], rtol=1e-5)
    # Means and covariances by the law of total variance.
    np.testing.assert_allclose(centres[0], [-35 / 6, -6], rtol=1e-5)
    np.testing.assert_allclose(centres[4], [8, 8], rtol=1e-5)
    spread = 1 + (6 * 2**2 + 12**2) / 7
    np.testing.assert_allclose(
        roots[4] @ roots[4].T, [[spread, spread - 1], [spread - 1, spread]], rtol=1e-5
    )


def test_components_get_the_weights_that_they_have_under_the_target():
    """Two of three wrong weights are found; a mixture that lies elsewhere keeps its."""
    means = jnp.array([[-4.0, 0], [4, 0], [0, 6]]).astype(float)
    factors = jnp.tile(jnp.diag(jnp.array([0.5, 1.0])), (3, 1, 1)).astype(float)
    exact = jnp.array([0.2, 0.3, 0.5]).astype(float)

    def log_density(x):
        away = jnp.sum(((x[None] - means) / jnp.array([[0.5, 1.0]])) ** 2, axis=1)
        return jax.nn.logsumexp(jnp.log(exact) - 0.5 * away)

    def weighed(logits, means):
        return jax.jit(lambda m: reweigh(jax.random.key(0), log_density, m))(
            (logits, means, factors)
        )[0]

    logits = jnp.log(jnp.array([0.25, 0.25, 0.5]).astype(float))
    # Components do not overlap, so there is no noise but that of their rounded shares.
    np.testing.assert_allclose(jnp.exp(weighed(logits, means)), exact, atol=1e-3)
    np.testing.assert_array_equal(weighed(logits, means + 3.0), logits)


def test_the_gradient_along_paths_has_no_noise_at_the_optimum():
    """A mixture against itself: zero at every batch, and not on average alone."""
    key = jax.random.key(0)
    mixture = (
        jnp.zeros(2),
        jnp.array([[-1.0, 0], [1, 0]]),
        jnp.tile(jnp.eye(2), (2, 1, 1)),
    )
    network = mixture_map(key, mixture, 8, 1, layers=2)
    still = jax.tree.map(lambda a: jnp.zeros_like(a), network.map.weights)
    network = eqx.tree_at(lambda n: n.map.weights, network, still)
    inverses = network.inverse_factors()
    target = pf.Target(lambda x: network.base_log_density(x, inverses) + 3.0, dim=2)
    z = network.latents(jax.random.key(1), 16)
    (value, _), gradient = eqx.filter_jit(
        eqx.filter_value_and_grad(reverse_kl_loss, has_aux=True)
    )(network, target, z, key)
    np.testing.assert_allclose(value, -3.0, atol=1e-5)
    for leaf in jax.tree.leaves(gradient):
        np.testing.assert_allclose(leaf, 0.0, atol=1e-5)


def test_one_coordinate_has_no_halves():
    with pytest.raises(UsageError, match="there is only 1"):
        networks.CouplingMap(1, 2, 4, 1, key=jax.random.key(0))


def test_modes_are_found_among_many_directions():
    """Two modes along the one direction that varies most, of 40; then all vary alike.

    Where all vary alike, the modes are 2 apart, and any two points 9.
    """
    x = draws(2000, 40)
    side = jnp.where(jnp.arange(2000) % 10 < 3, -4.0, 4.0)
    x = x.at[:, 0].add(side)
    scales = jnp.std(x, axis=0)
    whitened = (x - jnp.mean(x, axis=0)[None]) / scales[None]
    logits, means, factors = jax.jit(
        lambda x: fit_mixture(jax.random.key(0), x, 8, metric=jnp.diag(scales))
    )(whitened)
    # One covariance for all, narrow in that direction: 1 / 3.8, and a little more.
    np.testing.assert_array_equal(factors, np.tile(factors[:1], (8, 1, 1)))
    covariance = factors[0] @ factors[0].T
    assert float(covariance[0, 0] * scales[0] ** 2) < 1.5
    # No component lies between the modes, and their weights are those of the modes.
    centre = means[:, 0] * scales[0] + jnp.mean(x[:, 0])
    np.testing.assert_allclose(jnp.abs(centre), 4.0, atol=2.0)
    weight = jnp.sum(jnp.where(centre < 0, jnp.exp(logits), 0.0))
    np.testing.assert_allclose(weight, 0.3, atol=0.01)


# All of them

NEW = ["critic", "fisher", "flow", "ksd", "steingan"]


# Those that learn the score of noisy draws.
NOISY = {"dft", "kl", "fisher"}


@pytest.mark.parametrize("name", sorted(set(methods.REGISTRY) - NOISY))
def test_methods_without_noise_refuse_a_target_known_only_with_noise(name):
    smoothed = pf.NoiseConditionalTarget(
        lambda x, sigma: -x / (1 + sigma**2), dim=2, sigma_range=(0.1, 1.0)
    )
    said = r"known only with noise added; use .* DFT"
    if name == "adaptive":
        said = r"needs a log density, but a NoiseConditionalTarget has only a score"
    with pytest.raises(UsageError, match=said):
        methods.REGISTRY[name]().resolve(smoothed)


@pytest.mark.parametrize("which", ["levels", "sampler_levels"])
def test_levels_of_noise_are_refused_where_the_score_has_none(which):
    noise = objectives.Noise(**{which: (0.1, 1.0)})
    with pytest.raises(UsageError, match=r"which a Target has not; give scale="):
        methods.DFT(noise=noise).resolve(NORMAL)


@pytest.mark.parametrize("make", [methods.DFT, methods.KL])
def test_noise_levels_of_score_steps_and_of_sampler_steps(make):
    target = pf.NoiseConditionalTarget(
        lambda x, sigma: -x / sigma**2, dim=2, sigma_range=(0.3, 3.0)
    )

    def drawn(method):
        noise = method.resolve(target).objective.noise
        ranges = noise.levels, noise.sampler_levels
        # Log-uniform, 4000 of them: the ends are reached to a thousandth or so.
        for wanted in ranges:
            found = np.asarray(noise.draw(jax.random.key(0), target, wanted, 4000))
            ends = found.min(), found.max()
            np.testing.assert_allclose(ends, wanted, rtol=0.01)
        return ranges

    assert drawn(make()) == ((0.3, 3.0), (0.3, 3.0))
    own = objectives.Noise(levels=(0.2, 3.0), sampler_levels=(0.2, 1.0))
    assert drawn(make(noise=own)) == ((0.2, 3.0), (0.2, 1.0))
    for wrong in ((0.1, 3.0), (0.3, 4.0)):
        noise = objectives.Noise(sampler_levels=wrong)
        with pytest.raises(UsageError, match="must lie within those of score steps"):
            make(noise=noise).resolve(target)
    # A target without levels has the one that the noise has.
    noise = make(noise=0.1).resolve(NORMAL).objective.noise
    assert noise.ranges(NORMAL) == ((0.1, 0.1), (0.1, 0.1))


# What users may write, and what they are told. In a process of its own: in this one
# the annotations are checked first, which users do not have.
IMPOSSIBLE = {
    "methods.KSD(batch_size=1)": "at least 2, not 1",
    "methods.SteinGAN(batch_size=1)": "at least 2, not 1",
    "methods.SteinGAN(heuristic='mean')": "one of median, svgd, not 'mean'",
    "methods.KSD(beta=-1.5)": "cannot detect convergence",
    "methods.SteinCritic(penalty=0.0)": "penalty must be positive",
    "methods.DFT(w1=float('nan'))": "w1 must be a finite number, not nan",
    "methods.DFT(form='nonsense')": "form must be one of denoising",
    "methods.DFT(estimator='best')": "estimator must be one of denoising",
    "methods.DFT(width=64)": "no option 'width'; give its network's",
    "methods.DFT(shape='nonsense')": "no option 'shape'",
    "methods.KL(steps=0)": "steps must be a whole number of at least 1",
    "methods.KL(batch_size=2.5)": "batch_size must be a whole number",
    "methods.KL(averaging=1.0)": "averaging must be at least 0 and less",
    "methods.KL(particles=1)": "particles must be a whole number",
    "methods.KL(whiten='no')": "whiten must be True or False",
    "methods.KL(optimiser=-1.0)": "learning_rate must be a number above 0",
    "methods.KL(score_optimiser=0.0)": "learning_rate must be a number above 0",
    "methods.KL(optimiser='adam')": "must be a transformation of optax",
    "methods.Adam(schedule='nonsense')": "schedule must be one of cosine",
    "methods.Adam(momentum=1.5)": "momentum must be at least 0 and less",
    "methods.Adam(clip=0.0)": "clip must be a number above 0",
    "methods.DFT(score_steps=0)": "must be a whole number of at least 1",
    "methods.DFT(score_warmup=-1)": "warmup must be a whole number",
    "methods.DFT(score_warmup=1.5)": "warmup must be at least 0 and less",
    "methods.DFT(steps=600, score_warmup=600)": "sampler would never move",
    "methods.DFT(network='residual')": "A network must be one such as",
    "networks.residual(width=0)": "width must be a whole number",
    "networks.mlp(activation='nonsense')": "'nonsense' is not known",
    "networks.mixture(layers=-1)": "layers must be a whole number",
    "objectives.Noise(scale=1.0)": "less than 1, the width of the whitened",
    "objectives.Noise(levels=(3.0, 0.3))": "two positive numbers in order",
    "objectives.Noise(antithetic=1)": "antithetic must be True or False",
}
CHILD = """
import sys
from pushforward import methods, networks, objectives
from pushforward.errors import UsageError
for text in sys.argv[1:]:
    try:
        print(eval(text))
    except UsageError as error:
        print(error)
"""


def test_impossible_settings_are_refused():
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *IMPOSSIBLE],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert len(told) == len(IMPOSSIBLE), "a sentence has more than one line"
    for said, expected in zip(told, IMPOSSIBLE.values(), strict=True):
        assert expected in said


PAPER = {
    "whiten": False,
    "averaging": 0.0,
    "optimiser": methods.Adam(schedule="constant"),
    "batch_size": 8,
    "particles": 16,
    "steps": 5,
}


@pytest.mark.parametrize("name", NEW)
def test_the_papers_setting_trains_many_seeds_on_minibatches(name):
    """Plain networks in the target's own coordinates, vmapped, without an average."""
    target = pf.MinibatchTarget(
        lambda m: -0.5 * jnp.sum(m**2),
        lambda m, y: -0.5 * jnp.sum((m - y) ** 2),
        draws(20, 2),
        dim=2,
        batch_size=5,
    )
    network = networks.mlp(width=4, depth=1, activation="elu", latent=3)
    if name == "flow":
        network = networks.coupling(layers=2, width=4, depth=1)
    # A step whose gradient is not finite would show: 0 times it is not finite either.
    method = methods.REGISTRY[name](network=network, **PAPER).resolve(target)
    steps = jnp.asarray(5, jnp.int32)
    keys = jax.random.split(jax.random.key(0), 2)

    def train(key):
        state = method.init(key, target, steps)
        return method.step(key, target, state)

    state, info = jax.jit(jax.vmap(train))(keys)
    assert all(v.shape == (2,) and bool(jnp.isfinite(v).all()) for v in info.values())
    for now, averaged in zip(
        jax.tree.leaves(state.network), jax.tree.leaves(state.averaged), strict=True
    ):
        np.testing.assert_array_equal(now, averaged)
        assert bool(jnp.isfinite(now).all())
        # The weight of a single component is the same for all seeds.
        assert now[0].size == 1 or bool((now[0] != now[1]).any())
