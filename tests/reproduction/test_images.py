"""Networks for images."""

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from described import (
    check_every_argument_is_stored,
    check_round_trip,
    check_static_fields_are_plain,
    check_stays_in_32_bit,
)
from golden import check_sampler
from pushforward.errors import UsageError
from pushforward.networks import KINDS, at_rest, build, with_statistics
from pushforward.sampler import load_network
from reproduction.mnist import networks
from reproduction.mnist.networks import (
    EnergyResNet,
    Generator,
    UNet,
    WideResNet,
    layers,
)
from reproduction.mnist.networks.layers import (
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
# Every kind, with no argument at its default.
DESCRIPTIONS = [
    {
        "kind": "Generator",
        "in_size": 3,
        "width": 8,
        "compute": "float32",
        "codes": 2,
        "weighted": True,
    },
    {
        "kind": "EnergyResNet",
        "side": 8,
        "width": 4,
        "compute": "float32",
        "depth": 2,
    },
    {"kind": "UNet", "side": 8, "width": 8, "compute": "float32", "depth": 2},
    {
        "kind": "WideResNet",
        "out_size": 3,
        "side": 8,
        "width": 1,
        "compute": "float32",
        "depth": 10,
    },
]
described = pytest.mark.parametrize(
    "description", DESCRIPTIONS, ids=lambda description: description["kind"]
)


def test_every_kind_is_tested():
    kinds = {description["kind"] for description in DESCRIPTIONS}
    assert kinds == set(networks.__all__) & set(KINDS)


@described
def test_round_trip(description):
    check_round_trip(description)


@described
def test_every_argument_is_stored(description):
    check_every_argument_is_stored(description)


@pytest.mark.usefixtures("x64")
@described
def test_networks_stay_in_32_bit(description):
    level = jax.ShapeDtypeStruct((), jnp.float32)
    levels = (level,) if description["kind"] == "UNet" else ()
    check_stays_in_32_bit(description, *levels)


@described
def test_static_fields_are_plain(description):
    check_static_fields_are_plain(description)


def test_a_generator_stored_before_there_were_codes():
    network = build({"kind": "Generator", "in_size": 3, "width": 8})
    assert isinstance(network, Generator) and network.codes == 0


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


def test_more_codes_than_latent_numbers():
    with pytest.raises(UsageError, match="5 codes need as many latent numbers"):
        Generator(4, 8, codes=5, key=KEY)


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


FORMAT_1 = Path(__file__).parent / "data" / "format_1"


class TestFormat1:
    """Files of version 0.1.0, which had these networks in the package."""

    def test_a_sampler(self, tmp_path):
        sampler = check_sampler(FORMAT_1 / "digits_half.pf", tmp_path)
        assert isinstance(sampler.network, Generator)

    @pytest.mark.parametrize(
        "path", sorted(FORMAT_1.glob("*.network")), ids=lambda p: p.stem
    )
    def test_a_network(self, path):
        network = load_network(path)
        assert isinstance(network, EnergyResNet | UNet)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(network))
