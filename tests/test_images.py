"""Networks for images, and their training by methods that know nothing of images."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pushforward as pf
from pushforward import methods
from pushforward.errors import UsageError
from pushforward.methods.codes import weight_loss
from pushforward.networks import (
    EnergyResNet,
    Generator,
    UNet,
    WideResNet,
    at_rest,
    layers,
    with_statistics,
)
from pushforward.networks.layers import (
    BatchNorm,
    Conv,
    GroupNorm,
    UpConv,
    double,
    fold,
    halve,
    unfold,
)

KEY = jax.random.key(0)


def count(network) -> int:
    shapes = eqx.filter_eval_shape(network, key=KEY)
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def test_sizes_are_those_of_the_literature():
    """9.06 M weights: the energy model of the multi-scale denoising paper. 11.0 M:
    WideResNet-16-8."""
    assert count(EnergyResNet) == pytest.approx(9.06e6, rel=1e-3)
    assert count(WideResNet) == pytest.approx(10.97e6, rel=1e-3)


def test_a_convolution_is_a_sum_over_neighbours():
    conv = Conv(2, 3, key=KEY)
    x = jax.random.normal(jax.random.key(1), (5, 5, 2), jnp.float32)
    padded = np.pad(np.asarray(x), ((1, 1), (1, 1), (0, 0)))
    weight = np.asarray(conv.weight)
    expected = np.einsum("hwc,hwco->o", padded[2:5, 1:4], weight)
    np.testing.assert_allclose(conv(x)[2, 1], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("layer", "side"),
    [
        (Conv(2, 3, key=KEY), 6),
        (Conv(2, 3, 1, key=KEY), 6),
        (UpConv(2, 3, 2, key=KEY), 4),
        (UpConv(2, 3, 4, key=KEY), 1),
    ],
)
def test_convolutions_as_products_of_matrices(layer, side, monkeypatch):
    x = jax.random.normal(jax.random.key(1), (side, side, 2), jnp.float32)
    found = []
    for cpu in (True, False):
        monkeypatch.setattr(layers, "on_cpu", lambda cpu=cpu: cpu)
        found.append(jax.value_and_grad(lambda x: jnp.sum(layer(x) ** 2))(x))
    (one, slope), (other, other_slope) = found
    np.testing.assert_allclose(one, other, rtol=1e-5)
    np.testing.assert_allclose(slope, other_slope, rtol=1e-4, atol=1e-4)


def test_halving_and_doubling():
    x = jnp.arange(32.0).reshape(4, 4, 2)
    assert halve(x)[0, 0, 0] == jnp.mean(x[:2, :2, 0])
    np.testing.assert_array_equal(halve(double(x)), x)


def test_folding():
    x = jnp.arange(48.0).reshape(4, 4, 3)
    folded = fold(x)
    assert folded.shape == (2, 2, 12)
    np.testing.assert_array_equal(folded[0, 1], x[:2, 2:].ravel())
    np.testing.assert_array_equal(unfold(folded), x)


def test_batch_norm():
    batch = 3 + 2 * jax.random.normal(KEY, (16, 4, 4, 5), jnp.float32)
    out, seen = BatchNorm(5).train(batch, keep=0.0)
    np.testing.assert_allclose(out.mean((0, 1, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(out.std((0, 1, 2)), 1, atol=1e-3)
    # With the batch's own statistics the layer at rest does what it did in training.
    np.testing.assert_allclose(jax.vmap(seen)(batch), out, atol=1e-5)


def test_group_norm_does_not_see_scale_or_offset_of_an_image():
    x = jax.random.normal(KEY, (4, 4, 16), jnp.float32)
    norm = GroupNorm(16)
    np.testing.assert_allclose(norm(5 * x + 3), norm(x), atol=1e-3)


@pytest.mark.parametrize("make", [Generator, WideResNet])
def test_statistics_are_estimated_anew_and_kept_apart(make):
    width = {Generator: 16, WideResNet: 1}[make]
    network = make(width=width, key=KEY)
    shape = (8, network.in_size)
    batch = jax.random.normal(jax.random.key(1), shape, jnp.float32)
    # Compiled whole: one program for each operation would take longer.
    out, _ = eqx.filter_jit(lambda network: network.train(batch))(network)
    rested = eqx.filter_jit(at_rest)(network, batch[None])
    np.testing.assert_allclose(jax.jit(jax.vmap(rested))(batch), out, atol=1e-4)
    back = with_statistics(rested, network)
    assert eqx.tree_equal(back, network)

    def loss(network):
        return jnp.sum(network.train(batch)[0] ** 2)

    gradient = eqx.filter_jit(eqx.filter_grad(loss))(network)
    assert all(not part.any() for part in gradient.statistics())
    assert any(part.any() for part in jax.tree.leaves(gradient))


def test_a_u_net_keeps_its_shape_at_every_level():
    network = UNet(8, 8, key=KEY)
    x = jax.random.normal(jax.random.key(1), (64,), jnp.float32)
    points, levels = jnp.stack([x, x]), jnp.array([0.3, 3.0], jnp.float32)
    out = jax.jit(jax.vmap(lambda x, sigma: network(x, sigma)))(points, levels)
    assert out.shape == (2, 64)
    assert not np.allclose(0.3 * out[0], 3.0 * out[1])


def test_a_u_net_that_has_learnt_nothing_knows_the_noise():
    """With its last layer at zero, the score of N(0, 1/4 + sigma^2) in every pixel."""
    network = UNet(8, 8, depth=1, key=KEY)
    last = network.head[1]
    nothing = jnp.zeros_like(last.weight)
    network = eqx.tree_at(lambda n: n.head[1].weight, network, nothing)
    x = jax.random.normal(jax.random.key(1), (64,), jnp.float32)
    for sigma in (0.3, 3.0):
        found = network(x, jnp.asarray(sigma, jnp.float32))
        np.testing.assert_allclose(found, -x / (0.25 + sigma**2), rtol=1e-5)


def test_points_of_many_coordinates_come_in_smaller_blocks():
    sampler = pf.sampler.Sampler(
        Generator(2, 8, key=KEY),
        pf.targets.coordinates.Whitening.identity(1024),
        jnp.zeros(()),
        pf.targets.structure.Structure.vector(1024),
    )
    assert sampler.block_size == 1024


@pytest.mark.once
def test_an_image_sampler_is_trained_saved_and_loaded(tmp_path):
    """Any noise-conditional score will do: here that of N(1/2, 1/16 + sigma^2)."""
    target = pf.NoiseConditionalTarget(
        lambda x, sigma: (0.5 - x) / (0.0625 + sigma**2), dim=1024,
        sigma_range=(0.3, 3.0),
    )  # fmt: skip
    method = methods.DFT(
        shape="image", width=8, score_width=8, depth=2, latent=4, batch_size=2, steps=3,
        score_steps=1, score_warmup=0, w1=0.0, particles=8, sigma_power=3.0,
        antithetic=False, codes=2, weigh_codes=True,
    )  # fmt: skip
    assert method.resolve(target, "cpu").evaluations == 3
    fit = pf.fit(KEY, target, method, progress=False, out=tmp_path / "run")
    assert fit.finished and fit.config["method"]["compute"] == "float32"
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


@pytest.mark.parametrize("make", [methods.DFT, methods.KL])
def test_noise_levels_of_score_steps_and_of_sampler_steps(make):
    target = pf.NoiseConditionalTarget(
        lambda x, sigma: -x / sigma**2, dim=2, sigma_range=(0.3, 3.0)
    )

    def drawn(method):
        ranges = (
            (method.sigma_min, method.sigma_max),
            (method.sampler_sigma_min, method.sampler_sigma_max),
        )
        levels = [np.asarray(method._noise_levels(KEY, target, r)) for r in ranges]
        # Log-uniform, 4000 of them: the ends are reached to a thousandth or so.
        for found, wanted in zip(levels, ranges, strict=True):
            ends = found.min(), found.max()
            np.testing.assert_allclose(ends, wanted, rtol=0.01)
        return ranges

    plain = make(batch_size=4000).resolve(target, "cpu")
    assert drawn(plain) == ((0.3, 3.0), (0.3, 3.0))
    own = make(batch_size=4000, sigma_min=0.2, sampler_sigma_max=1.0)
    assert drawn(own.resolve(target, "cpu")) == ((0.2, 3.0), (0.2, 1.0))
    for wrong in ({"sampler_sigma_min": 0.1}, {"sampler_sigma_max": 0.2}):
        with pytest.raises(UsageError, match="must lie in order and within those"):
            make(**wrong).resolve(target, "cpu")
    # A target without levels has the one that the noise has.
    only = make(noise_scale=0.1).resolve(pf.targets.get("donut"), "cpu")
    assert (only.sigma_min, only.sampler_sigma_max) == (0.1, 0.1)


@pytest.mark.parametrize(("kind", "power"), [(methods.DFT, 4.0), (methods.KL, 2.0)])
def test_settings_for_images(kind, power):
    made = methods.for_images(kind, width=8, steps=2)
    assert isinstance(made, kind) and made.sigma_power == power
    assert (made.shape, made.codes, made.width, made.steps) == ("image", 32, 8, 2)
    assert methods.for_images(kind, sigma_power=1.0).sigma_power == 1.0
    # Where there are no codes, there is nothing to weigh.
    assert made.weigh_codes and not methods.for_images(kind, codes=0).weigh_codes
    assert methods.for_images().w1 == 0.0
    with pytest.raises(UsageError, match="of DFT and of KL, not of Fisher"):
        methods.for_images(methods.Fisher)


def test_a_generator_that_jumps():
    """The image is continuous where one code is chosen, and jumps where another is."""
    made = Generator(4, 8, codes=2, key=KEY)
    middle = jnp.asarray([0.5, 0.5, 1.0, -1.0], jnp.float32)
    step = 1e-4 * jnp.asarray([1.0, -1.0, 0.0, 0.0], jnp.float32)
    first, near = made(middle + step), made(middle + 2 * step)
    other = made(middle - step)
    assert np.abs(first - near).max() < 1e-3 < 0.01 < np.abs(first - other).max()
    # In training as in use, up to the statistics of a batch, which are set apart.
    batch = jnp.stack([middle + step, middle - step])
    same = at_rest(made, batch[None])
    np.testing.assert_allclose(
        same.train(batch)[0], jax.vmap(same)(batch), rtol=1e-3, atol=1e-3
    )
    # A code is as long as the latent numbers are: its first layer's share is theirs.
    assert made._coded(middle)[4:].max() == 2.0
    # Whoever has no codes does not jump.
    plain = Generator(4, 8, key=KEY)
    assert np.abs(plain(middle + step) - plain(middle - step)).max() < 1e-3


def test_codes_with_weights():
    """The last latent number picks a code by its weight, and does nothing else."""
    made = Generator(3, 8, codes=2, weighted=True, key=KEY)
    logits = jnp.log(jnp.asarray([0.8, 0.2], jnp.float32))
    made = eqx.tree_at(lambda n: n.logits, made, logits)
    # The 80 % point of N(0, 1) is .8416: there one code ends and the other begins.
    points = [[0.1, 0.2, u] for u in (-3.0, 0.84, 0.85, 3.0)]
    z = jnp.asarray(points, jnp.float32)
    assert jax.vmap(made.code)(z).tolist() == [0, 0, 1, 1]
    np.testing.assert_allclose(
        jax.vmap(made.log_weight)(z), np.log([0.8, 0.8, 0.2, 0.2]), rtol=1e-5
    )
    images = jax.vmap(made)(z)
    np.testing.assert_array_equal(images[0], images[1])
    np.testing.assert_array_equal(images[2], images[3])
    assert not np.allclose(images[1], images[2])
    with pytest.raises(UsageError, match="nothing to weigh among 0 codes"):
        Generator(3, 8, weighted=True, key=KEY)


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


def test_more_codes_than_latent_numbers():
    with pytest.raises(UsageError, match="5 codes need as many latent numbers"):
        Generator(4, 8, codes=5, key=KEY)


@pytest.mark.parametrize(
    "wrong",
    [
        {"codes": 3},
        {"codes": 1, "shape": "image", "latent": 8},
        {"codes": 9, "shape": "image", "latent": 8},
    ],
)
def test_codes_that_cannot_be(wrong):
    target = pf.targets.get("donut")
    method = methods.DFT(steps=2, batch_size=2, **wrong)
    with pytest.raises(UsageError, match="codes are for shape='image'"):
        pf.fit(KEY, target, method, progress=False)


@pytest.mark.parametrize(
    ("wrong", "levels"),
    [({}, True), ({"codes": 2}, False), ({"codes": 2, "batch_size": 1}, True)],
)
def test_weights_of_codes_that_cannot_be_learnt(wrong, levels):
    smooth = pf.NoiseConditionalTarget(
        lambda x, sigma: -x / sigma**2, dim=1024, sigma_range=(0.3, 3.0)
    )
    target = smooth if levels else pf.ScoreTarget(lambda x: -x, 1024)
    method = methods.DFT(shape="image", weigh_codes=True, **wrong)
    with pytest.raises(UsageError, match="weigh_codes needs codes, batches of"):
        method.resolve(target, "cpu")


@pytest.mark.parametrize("make", [methods.KSD, methods.SteinGAN, methods.SteinCritic])
def test_methods_that_train_no_images(make):
    with pytest.raises(UsageError, match="does not train networks of shape='image'"):
        make(shape="image").resolve(pf.targets.get("donut"), "cpu")


def test_smaller_networks_are_networks_too():
    """One size of image instead of three, one block of a kind instead of two."""
    x, sigma = jnp.ones(64, jnp.float32), jnp.asarray(0.5, jnp.float32)
    made = [
        (UNet, (8, 8), 1, (x, sigma), 64),
        (EnergyResNet, (8, 2), 1, (x,), 1),
        (WideResNet, (10, 8, 1), 10, (x,), 10),
    ]
    for make, sizes, depth, arguments, outputs in made:

        def run(key, make=make, sizes=sizes, depth=depth, arguments=arguments):
            return make(*sizes, depth=depth, key=key)(*arguments)

        assert eqx.filter_eval_shape(run, KEY).shape == (outputs,)


def test_an_image_has_its_size():
    with pytest.raises(UsageError, match="images of 1024 pixels"):
        pf.fit(
            KEY,
            pf.targets.get("gaussian"),
            methods.KL(shape="image", steps=2),
            progress=False,
        )
