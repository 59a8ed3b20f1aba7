"""Training networks of images by methods that know nothing of them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pushforward as pf
from pushforward import objectives
from pushforward.errors import UsageError
from reproduction.mnist.codes import CodeWeights, weight_loss
from reproduction.mnist.methods import (
    KL_POWER,
    GeneratorSpec,
    UNetSpec,
    for_images,
)
from reproduction.mnist.networks import Generator

KEY = jax.random.key(0)
TINY = {
    "width": 8,
    "latent": 4,
    "codes": 2,
    "score_width": 8,
    "score_depth": 2,
    "batch_size": 2,
    "steps": 3,
    "score_warmup": 0,
}


@pytest.mark.once
def test_an_image_sampler_is_trained_saved_and_loaded(tmp_path):
    """Any noise-conditional score will do: here that of N(1/2, 1/16 + sigma^2)."""
    target = pf.NoiseConditionalTarget(
        lambda x, sigma: (0.5 - x) / (0.0625 + sigma**2), dim=1024,
        sigma_range=(0.3, 3.0),
    )  # fmt: skip
    method = for_images(power=3.0, **TINY)
    assert method.resolve(target).evaluations == 3
    fit = pf.fit(KEY, target, method, progress=False, out=tmp_path / "run")
    assert fit.finished and fit.config["method"]["network"]["compute"]
    network = fit.sampler.network
    assert isinstance(network, Generator)
    # The statistics are those of its own layers, not where they started.
    assert not np.allclose(network.norms[0].variance, 1.0)
    assert network.logits is not None and network.logits.any()
    draws = fit.sampler.sample(jax.random.key(1), 5)
    assert draws.shape == (5, 1024)
    assert (draws >= 0).all() and (draws <= 1).all()
    again = pf.load(tmp_path / "run").sample(jax.random.key(1), 5)
    np.testing.assert_array_equal(draws, again)


@pytest.mark.parametrize("codes", [0, 2])
def test_settings_for_images(codes):
    made = for_images(codes=codes, width=8, steps=2)
    assert made.objective.objective == objectives.DFT(w1=0.0)
    assert made.objective.noise.power == 4.0 and made.steps == 2
    assert made.network == GeneratorSpec(8, 128, codes, codes > 0)
    assert made.second == UNetSpec(96, 3)
    # Where there are no codes, there is nothing to weigh.
    weights = made.objective.network_loss
    assert weights == (CodeWeights(3.0) if codes else None)
    kl = for_images(objectives.KL(), power=KL_POWER, sampler_levels=(0.5, 2.0))
    assert kl.objective.network_loss == CodeWeights(2.0)
    assert kl.objective.noise.sampler_levels == (0.5, 2.0)


def two_bumps(w, sigma, distance=2.0):
    """Log density and score of two normals of one width in the plane, at weight w."""
    centres = jnp.asarray([[0.0, 0.0], [distance, 0.0]], jnp.float32)

    def log_density(x):
        exponents = -jnp.sum((x[None] - centres) ** 2, axis=1) / (2 * sigma**2)
        return jax.nn.logsumexp(exponents, b=jnp.asarray([1 - w, w], jnp.float32))

    return centres, log_density, jax.grad(log_density)


def test_the_gradient_of_the_weights_of_codes():
    """Against quadrature, where each code makes one point: a mixture of two normals."""
    sigma, w, v, n = 0.8, 0.3, 0.6, 200_000
    centres, log_p, score = two_bumps(w, sigma)
    _, log_q, target = two_bumps(v, sigma)
    # r = log p - log q depends on the first coordinate alone.
    grid = np.linspace(-8, 10, 4001)
    points = jnp.asarray(np.stack([grid, 0 * grid], axis=1), jnp.float32)
    r = np.asarray(jax.vmap(log_p)(points) - jax.vmap(log_q)(points), np.float64)

    def mean(centre):
        weight = np.exp(-0.5 * ((grid - centre) / sigma) ** 2)
        return np.sum(weight * r) / np.sum(weight)

    exact = w * (1 - w) * (mean(2.0) - mean(0.0))

    made = Generator(3, 8, codes=2, weighted=True, key=KEY)
    logits = jnp.log(jnp.asarray([1 - w, w], jnp.float32))
    made = eqx.tree_at(lambda n: n.logits, made, logits)
    z_key, key = jax.random.split(jax.random.key(1))
    z = jax.random.normal(z_key, (n, 3), jnp.float32)
    x0 = centres[jax.vmap(made.code)(z)]
    level = jnp.asarray(sigma, jnp.float32)

    def gradient(score):
        def loss(logits):
            network = eqx.tree_at(lambda n: n.logits, made, logits)
            return weight_loss(key, network, z, x0, score, target, level)

        return np.asarray(jax.grad(loss)(logits))

    # Of n / 2 pairs 42 % are of two codes. Each then counts half of its rise, which is
    # at most the steepest slope of r times the distance, 2.
    steepest = np.abs(np.gradient(r, grid)).max()
    error = steepest * (0.42 / (n / 2)) ** 0.5
    np.testing.assert_allclose(gradient(score), [-exact, exact], atol=4 * error)
    assert abs(exact) > 40 * error
    # Where the weights are right, every draw says so.
    np.testing.assert_allclose(gradient(target), 0.0, atol=1e-6)


@pytest.mark.parametrize(("codes", "latent"), [(1, 8), (9, 8)])
def test_codes_that_cannot_be(codes, latent):
    with pytest.raises(UsageError, match="no codes, or from 2 to as many"):
        for_images(codes=codes, latent=latent)


@pytest.mark.parametrize(
    ("wrong", "levels", "sentence"),
    [
        ({"codes": 0}, True, "Weights of codes are learnt by a generator"),
        ({"batch_size": 1}, True, "Weights of codes are learnt by a generator"),
        ({}, False, "a score that depends on the noise level, which a ScoreTarget"),
    ],
)
def test_weights_of_codes_that_cannot_be_learnt(wrong, levels, sentence):
    smooth = pf.NoiseConditionalTarget(
        lambda x, sigma: -x / sigma**2, dim=1024, sigma_range=(0.3, 3.0)
    )
    target = smooth if levels else pf.ScoreTarget(lambda x: -x, 1024)
    options = {**TINY, "network_loss": CodeWeights(3.0), **wrong}
    if not levels:
        # A model of the score without levels: a U-Net needs them.
        options["score_network"] = pf.networks.residual(8, 1)
    method = for_images(**options)
    with pytest.raises(UsageError, match=sentence):
        pf.fit(KEY, target, method, progress=False)


@pytest.mark.parametrize("name", ["KSD", "SteinGAN", "SteinCritic"])
def test_methods_that_train_no_networks_of_whole_batches(name):
    target = pf.ScoreTarget(lambda x: -x, 1024)
    spec = GeneratorSpec(8, 4)
    make = getattr(pf.methods, name)
    critic = {"critic_network": pf.networks.mlp(8, 1)} if name == "SteinCritic" else {}
    method = make(network=spec, steps=2, batch_size=2, whiten=False, **critic)
    with pytest.raises(UsageError, match="does not train networks that look at whole"):
        pf.fit(KEY, target, method, progress=False)


def test_an_image_has_its_size():
    target = pf.NoiseConditionalTarget(
        lambda x, sigma: -x / sigma**2, dim=2, sigma_range=(0.3, 3.0)
    )
    method = for_images(network=GeneratorSpec(8, 4), steps=2)
    with pytest.raises(UsageError, match="images of 1024 pixels"):
        pf.fit(KEY, target, method, progress=False)
