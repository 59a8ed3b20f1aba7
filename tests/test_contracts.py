"""One test over every registered method, one over every registered target."""

import dataclasses
from typing import get_args, get_type_hints

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import pushforward as pf
from pushforward import _cli_arguments, methods, networks
from pushforward.diagnostics import ksd
from pushforward.mcmc.initialise import initialise, initialise_by_annealing
from pushforward.methods import REGISTRY
from pushforward.training.loop import all_finite

SIZES = {"steps": 30, "batch_size": 32, "particles": 128}


TINY_MIXTURE = networks.mixture(width=8, depth=1)

# These initialise from the target, which takes long to compile; for the
# others, which share it, the target's own coordinates will do.
LOOKING = ("transport", "gaussian", "dft")


def tiny(name):
    if name == "adaptive":
        sizes = {k: SIZES[k] for k in ("steps", "batch_size")}
        network = networks.mixture(2, 2, width=8, depth=1, bins=4)
        return REGISTRY[name](max_evaluations=1, network=network, **sizes)
    sizes = SIZES if name in LOOKING else {**SIZES, "whiten": False}
    if name == "transport":
        return REGISTRY[name](network=TINY_MIXTURE, **sizes)
    if name == "flow":
        return REGISTRY[name](network=networks.coupling(2, 8, 1), **sizes)
    if name == "gaussian":
        return REGISTRY[name](**sizes)
    return REGISTRY[name](network=networks.residual(8, 1), **sizes)


def missing(description):
    """The names of all that is None in a description."""
    for name, part in description.items():
        if part is None:
            yield name
        elif isinstance(part, dict):
            yield from missing(part)


def test_the_command_line_knows_every_method():
    typed = get_args(get_type_hints(_cli_arguments.Fit)["method"])
    assert set(typed) == {"default", *REGISTRY}


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_every_method_keeps_the_contract(name, tmp_path):
    method = tiny(name)
    target = pf.constrained(
        lambda p: -0.5 * p["x"] ** 2 + jnp.log(p["tau"]) - p["tau"],
        {"tau": "positive"},
        example={"tau": 1.0, "x": 0.0},
    )
    key, out = jax.random.key(1), tmp_path / "run"
    fitted = pf.fit(key, target, method, out=out, progress=False)
    # The default may be done before its last step.
    end = "Finished" if name == "adaptive" else "Finished 30 steps"
    assert fitted.finished and fitted.message.startswith(end)
    assert len(fitted.history) > 0
    assert fitted.config["method"]["name"] == name
    # Numbers that were left to us have been chosen, and those that do not apply (noise
    # levels, losses of the network, coordinates that were given) are None.
    left = {"levels", "sampler_levels", "network_loss", "coordinates"}
    assert set(missing(fitted.config["method"])) <= left
    assert len(repr(method).splitlines()) <= 6
    draws = fitted.sampler.sample(jax.random.key(2), 50)
    assert draws.keys() == {"tau", "x"} and (draws["tau"] > 0).all()
    saved = fitted.sampler.save(tmp_path / "sampler.pf")
    for loaded in (pf.load(saved), pf.load(out)):
        again = loaded.sample(jax.random.key(2), 50)
        np.testing.assert_array_equal(draws["x"], again["x"])
        np.testing.assert_array_equal(draws["tau"], again["tau"])
    resumed = pf.fit(key, target, method, out=out, resume=True, progress=False)
    np.testing.assert_array_equal(
        resumed.sampler.sample(jax.random.key(2), 50)["x"], draws["x"]
    )
    assert resumed.message.startswith(end)


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_the_protocol_is_pure(name):
    """The same key, target and state give the same step."""
    target = pf.targets.get("gaussian")
    method = tiny(name).resolve(target)
    init, step = eqx.filter_jit(method.init), eqx.filter_jit(method.step)
    found = method.prepare(jax.random.key(3), target)
    state = init(jax.random.key(0), target, jnp.asarray(10, jnp.int32), found)
    first, info = step(jax.random.key(1), target, state)
    second, _ = step(jax.random.key(1), target, state)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(a, b)
    assert all(jnp.shape(v) == () for v in info.values())
    assert method.sampler(target, first).dim == target.dim
    # What is not finite stays so: the engine relies on it.
    leaves, structure = jax.tree.flatten(first)
    for i, leaf in enumerate(leaves):
        if jnp.issubdtype(leaf.dtype, jnp.inexact) and leaf.size:
            poisoned = [*leaves[:i], leaf * jnp.nan, *leaves[i + 1 :]]
            after, _ = step(jax.random.key(2), target, structure.unflatten(poisoned))
            assert not bool(all_finite(after))


@pytest.mark.parametrize("name", pf.targets.names())
def test_every_target_keeps_the_contract(name):
    target = pf.targets.get(name)
    assert len(target.names) == target.dim
    key = jax.random.key(7)
    if not target.can_sample:
        x = jax.random.normal(key, (1000, target.dim))
    else:
        x = target.sample_flat(key, 1000)
        assert x.shape == (1000, target.dim) and bool(jnp.isfinite(x).all())
    scores = jax.jit(jax.vmap(target.score))(x)
    assert bool(jnp.isfinite(scores).all())
    if target.why_no_density() is None:
        expected = jax.jit(jax.vmap(jax.grad(target.log_density)))(x)
        np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)
    if target.can_sample:
        # Of 15 or so targets at one fixed seed, a false alarm at 1e-3 each is rare;
        # 2000 bootstraps resolve it.
        result = ksd(x, scores, key=jax.random.key(8), bootstraps=2000)
        assert float(result.p_value) > 1e-3


def test_a_noise_conditional_target_is_drawn_without_noise():
    """For `q_sigma = N(0, 1 + sigma^2)` the sampler's own output follows N(0, 1)."""
    target = pf.NoiseConditionalTarget(
        lambda x, sigma: -x / (1 + sigma**2), dim=2, sigma_range=(0.1, 2.0)
    )
    method = methods.KL(
        network=networks.residual(width=16, depth=1),
        steps=300,
        batch_size=128,
        score_steps=2,
        score_warmup=50,
    )
    fitted = pf.fit(jax.random.key(0), target, method, progress=False)
    assert fitted.sampler.noise_scale is None
    draws = fitted.sampler.sample(jax.random.key(1), 20_000)
    # Training starts at the answer and must stay there: sd within 5 %.
    np.testing.assert_allclose(draws.std(axis=0), 1.0, atol=0.05)


def smoothed_modes(dim):
    """Three normals of width .15 far apart, as their score at every noise level."""
    means = (
        jnp.zeros((3, dim))
        .at[:, :2]
        .set(jnp.array([[-2.0, 0.0], [2.0, 0.0], [0.0, 2.5]]))
    )
    logits = jnp.log(jnp.array([0.5, 0.3, 0.2]))

    def log_density(x, sigma):
        squares = jnp.sum((x[None] - means) ** 2, axis=1)
        return jax.nn.logsumexp(logits - 0.5 * squares / (0.15**2 + sigma**2))

    target = pf.NoiseConditionalTarget(
        jax.grad(log_density), dim=dim, sigma_range=(0.1, 3.0)
    )
    return target, means


def test_modes_of_a_smoothed_target_are_found_without_bridges_between_them():
    dim = 4
    target, means = smoothed_modes(dim)
    found = initialise_by_annealing(jax.random.key(0), target)
    assert int(found.evaluations) == 2048 * 1001
    fitted = pf.fit(jax.random.key(0), target, progress=False, steps=200, batch_size=64)
    draws = fitted.sampler.sample(jax.random.key(1), 4096)
    # A normal in `dim` dimensions is as far from its mean in 1e-5 of cases.
    far = stats.chi2.isf(1e-5, dim) * 0.15**2
    for x in (found.particles, draws):
        squares = np.asarray(jnp.sum((x[:, None] - means[None]) ** 2, axis=-1))
        assert np.mean(squares.min(axis=1) > far) < 1e-3
        shares = np.bincount(squares.argmin(axis=1), minlength=3) / len(x)
        # 2048 independent particles: a share's sd is .011 at most, here four of them.
        np.testing.assert_allclose(shares, [0.5, 0.3, 0.2], atol=0.045)


def test_a_method_by_name_starts_from_a_mixture_of_the_particles():
    """Two seeds in one program: each has the weights of the modes before training."""
    target = pf.targets.get("mog2")
    method = methods.DFT(steps=2, batch_size=16, score_warmup=1)
    fits = pf.fit_many(
        jax.random.split(jax.random.key(0), 2), target, method, progress=False
    )
    weights = []
    for fitted in fits:
        network = fitted.sampler.network
        assert isinstance(network, networks.MixtureMap) and network.layers == 0
        shares = jax.nn.softmax(network.logits)
        weights.append(float(jnp.sum(jnp.where(network.means[:, 0] < 0, shares, 0.0))))
        # The exploration, the draws by which components are weighed, and two steps.
        assert fitted.evaluations > 16_384 + 2 * 2 * 16
    # By 16,384 draws of the mixture; a share of 8,192 particles has an sd of .0055.
    np.testing.assert_allclose(weights, 0.5, atol=0.006)
    assert weights[0] != weights[1]


def test_what_the_default_is():
    few, many = smoothed_modes(10)[0], smoothed_modes(100)[0]
    mixture = networks.mixture(components=16, layers=0, width=64, depth=3)
    assert methods.default(few) == methods.KL(network=mixture)
    # Too many dimensions for a mixture of particles: no look at all.
    assert methods.default(many) == methods.KL()
    assert int(initialise(jax.random.key(0), many, particles=4).evaluations) == 0
    plain = pf.targets.get("donut")
    assert methods.default(plain) == methods.Adaptive()
    wide = pf.Target(lambda x: -0.5 * jnp.sum(x**2), dim=40)
    assert methods.default(wide) == methods.Adaptive()
    middle = pf.Target(lambda x: -0.5 * jnp.sum(x**2), dim=10)
    line = pf.Target(lambda x: -0.5 * jnp.sum(x**2), dim=1)
    targets = (line, plain, middle, wide, pf.Target(wide.log_density, dim=100))
    resolved = [methods.Transport().resolve(t).network for t in targets]
    shapes = [(m.layers, m.components) for m in resolved]
    assert shapes == [(0, 16), (12, 16), (12, 16), (12, 8), (14, 8)]
    # Without values of the density a single normal, in any number of dimensions.
    score = pf.ScoreTarget(wide.score, dim=40)
    data = pf.MinibatchTarget(
        lambda m: -0.5 * jnp.sum(m**2),
        lambda m, y: -0.5 * jnp.sum((y - m) ** 2),
        jnp.zeros((20, 40)),
        dim=40,
        batch_size=5,
    )
    for target in (score, data):
        assert methods.default(target) == methods.Transport()
        assert methods.Transport().resolve(target).network.components == 1


@pytest.mark.parametrize("dim", [6, 40])
def test_modes_in_many_dimensions_keep_their_weights(dim):
    """Two normals, 8 standard deviations apart, with weights .3 and .7."""
    means = jnp.stack([-4 * jnp.eye(dim)[0], 4 * jnp.eye(dim)[0]])
    logits = jnp.log(jnp.array([0.3, 0.7]))
    target = pf.Target(
        lambda x: jax.nn.logsumexp(
            logits - 0.5 * jnp.sum((x[None] - means) ** 2, axis=1)
        ),
        dim=dim,
    )
    method = methods.Transport(
        steps=300, batch_size=64, network=networks.mixture(width=16)
    )
    fitted = pf.fit(jax.random.key(0), target, method, progress=False)
    draws = fitted.sampler.sample(jax.random.key(1), 4096)
    # 2048 particles and 4096 draws: a share's sd is .012, if particles are independent.
    np.testing.assert_allclose(np.mean(draws[:, 0] > 0), 0.7, atol=0.06)
    around = draws - means[(draws[:, 0] > 0).astype(int)]
    np.testing.assert_allclose(around.std(axis=0), 1.0, atol=0.15)


def test_a_density_on_a_line_is_fitted():
    """Two wells, whose shares and moments are known by quadrature."""
    target = pf.Target(lambda x: -((x[0] ** 2 - 4) ** 2) / 4 + 0.2 * x[0], dim=1)
    method = methods.Transport(
        steps=600, batch_size=128, network=networks.mixture(width=16)
    )
    fitted = pf.fit(jax.random.key(0), target, method, progress=False)
    draws = fitted.sampler.sample(jax.random.key(1), 4096)[:, 0]
    grid = np.linspace(-6, 6, 4001)
    density = np.exp(-((grid**2 - 4) ** 2) / 4 + 0.2 * grid)
    density /= density.sum()
    right = density[grid > 0].sum()
    # Four standard errors of a share of 4096 draws.
    np.testing.assert_allclose(np.mean(draws > 0), right, atol=0.032)
    within = np.sqrt(density @ (np.abs(grid) - density @ np.abs(grid)) ** 2)
    # An sd of 4096 draws has a relative error of about 1.1 %; five of them.
    np.testing.assert_allclose(np.abs(draws).std(), within, rtol=0.055)


def test_weights_are_learned_late():
    target = pf.targets.get("mog2")
    method = methods.Transport(network=TINY_MIXTURE, **SIZES).resolve(target)
    start = method.init(jax.random.key(0), target, jnp.asarray(10))

    def after(step):
        """The weights after a step made as the one of this number."""
        clock = dataclasses.replace(start.clock, step=jnp.asarray(step, jnp.int32))
        state = eqx.tree_at(lambda s: s.clock, start, clock)
        return method.step(jax.random.key(1), target, state)[0].network.logits

    np.testing.assert_array_equal(after(4), start.network.logits)
    assert not np.array_equal(after(5), start.network.logits)


def test_a_posterior_through_minibatches_is_fitted():
    """The posterior of a Gaussian mean is known; minibatches of 10 of 200 data."""
    data = 1.0 + jax.random.normal(jax.random.key(3), (200, 2))
    target = pf.MinibatchTarget(
        lambda m: -0.5 * jnp.sum(m**2) / 100,
        lambda m, y: -0.5 * jnp.sum((y - m) ** 2),
        data,
        dim=2,
        batch_size=10,
    )
    fitted = pf.fit(
        jax.random.key(0), target, methods.Gaussian(steps=200), progress=False
    )
    draws = fitted.sampler.sample(jax.random.key(1), 20_000)
    precision = 200 + 1 / 100
    # The control variate makes the score exact for a quadratic: what is left is Adam's
    # noise, a few hundredths of a posterior sd.
    error = (draws.mean(axis=0) - data.sum(axis=0) / precision) * precision**0.5
    np.testing.assert_allclose(error, 0.0, atol=0.15)
    np.testing.assert_allclose(draws.std(axis=0) * precision**0.5, 1.0, atol=0.1)
