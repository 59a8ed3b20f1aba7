"""Networks: where they start, their precision, and what a file can build."""

import dataclasses
import functools
import inspect
import json
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pushforward import _io, networks
from pushforward.errors import FileError, UsageError
from pushforward.networks import (
    MLP,
    AffineMap,
    MixtureMap,
    ResidualMap,
    ScoreMLP,
    build,
    describe,
)
from pushforward.sampler import arrays_of

# Every kind, with no argument at its default.
DESCRIPTIONS = [
    {
        "kind": "MLP",
        "in_size": 3,
        "out_size": 2,
        "width": 8,
        "depth": 2,
        "activation": "gelu",
        "final_scale": 0.5,
    },
    {
        "kind": "ResidualMap",
        "in_size": 3,
        "out_size": 2,
        "width": 8,
        "depth": 1,
        "activation": "tanh",
        "scale": 0.9,
        "log_bound": 4.0,
    },
    {
        "kind": "ScoreMLP",
        "in_size": 2,
        "width": 8,
        "depth": 1,
        "activation": "elu",
        "conditional": True,
    },
    {"kind": "AffineMap", "in_size": 3},
    {
        "kind": "MixtureMap",
        "in_size": 3,
        "width": 8,
        "depth": 1,
        "components": 4,
        "layers": 2,
        "bins": 0,
    },
    {"kind": "SplineMap", "in_size": 3, "bins": 8, "bound": 4.0},
    {
        "kind": "CouplingMap",
        "in_size": 3,
        "layers": 2,
        "width": 8,
        "depth": 1,
        "activation": "elu",
        "log_bound": 3.0,
        "halves": "alternating",
        "bins": 4,
        "bound": 3.0,
    },
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
    assert set(networks.KINDS) == kinds


def test_a_generator_stored_before_there_were_codes():
    network = build({"kind": "Generator", "in_size": 3, "width": 8})
    assert isinstance(network, networks.Generator) and network.codes == 0


def test_a_mixture_map_stored_before_there_were_coupling_layers():
    old = {"kind": "MixtureMap", "in_size": 3, "width": 8, "depth": 1, "components": 4}
    network = build(old)
    assert isinstance(network, MixtureMap) and isinstance(network.map, ResidualMap)


class TestDescription:
    @described
    def test_round_trip(self, description):
        shapes = build(description)
        assert json.loads(json.dumps(describe(shapes))) == description
        # With a key the same network is made of numbers; here not even they are.
        made = eqx.filter_eval_shape(build, description, jax.random.key(0))
        assert eqx.tree_equal(made, shapes)
        named = arrays_of(shapes)
        assert len(named) == len(jax.tree.leaves(shapes))
        rng = np.random.default_rng(0)
        arrays = {
            name: rng.normal(size=leaf.shape).astype(leaf.dtype)
            for name, leaf in named.items()
        }
        network = _io.restore(shapes, arrays, Path("here"), arrays_of)
        assert describe(network) == description
        for name, leaf in arrays_of(network).items():
            np.testing.assert_array_equal(leaf, arrays[name])

    @described
    def test_every_argument_is_stored(self, description):
        # An argument that a file forgets would come back as its default.
        cls = getattr(networks, description["kind"])
        arguments = set(inspect.signature(cls.__init__).parameters) - {"self", "key"}
        assert arguments == set(description) - {"kind"}

    @pytest.mark.parametrize(
        "kind",
        [
            None,
            "Unheard",
            "AbstractNetwork",
            "build",
            "base",
            "__builtins__",
            "mlp.MLP",
            "os.system",
            "pushforward.networks.MLP",
            "Module",
            3,
            ["MLP"],
        ],
    )
    def test_nothing_else_is_built(self, kind):
        with pytest.raises(FileError, match="network"):
            build({"kind": kind, "in_size": 2})

    @pytest.mark.parametrize("description", [None, [], "MLP", 3, {}])
    def test_no_description_at_all(self, description):
        with pytest.raises(FileError, match="of the kind None"):
            build(description)

    @pytest.mark.parametrize(
        "change",
        [
            {"unheard": 1},
            {"key": 0},
            {"width": "8"},
            {"width": 0},
            {"width": -1},
            {"width": None},
            {"depth": -2},
            {"activation": "os.system"},
            {"in_size": 1},
        ],
        ids=str,
    )
    def test_a_wrong_argument(self, change):
        with pytest.raises(FileError, match="description of its ResidualMap network"):
            build(DESCRIPTIONS[1] | change)

    def test_a_missing_argument(self):
        description = dict(DESCRIPTIONS[1])
        del description["width"]
        with pytest.raises(FileError, match="width"):
            build(description)

    def test_a_wrong_call_is_the_callers_own(self):
        key = jax.random.key(0)
        with pytest.raises(UsageError, match="there are elu, gelu, leaky_relu, silu"):
            MLP(2, 2, 8, 1, "unheard", key=key)
        with pytest.raises(UsageError, match=r"numbers \(1\) as coordinates \(2\)"):
            ResidualMap(1, 2, 8, 1, key=key)


POINTS = np.random.default_rng(0).normal(size=(256, 3)).astype(np.float32)
LEVELS = (0.01, 1.0, 30.0)


@functools.cache
def starts():
    """New networks at a few hundred points, all in one program: most is compilation."""

    @jax.jit
    def values(key, x):
        score = ScoreMLP(3, 16, 2, conditional=True, key=key)
        levels = jnp.float32(LEVELS)
        latent = jnp.concatenate([x, x[:, :1]], axis=1)
        return {
            "residual": jax.vmap(ResidualMap(3, 2, 16, 2, scale=0.9, key=key))(x),
            "score": jax.vmap(ScoreMLP(3, 16, 2, key=key))(x),
            "mixture": jax.vmap(MixtureMap(4, 16, 2, 5, key=key))(latent),
            "affine": jax.vmap(AffineMap(3))(x),
            "layers": MLP(3, 3, 64, 3, final_scale=0.01, key=key).layers,
            "smoothed": jax.vmap(jax.vmap(score, (0, None)), (None, 0))(x, levels),
        }

    return values(jax.random.key(1), POINTS)


class TestStart:
    """Training starts at the standard normal and learns what is left."""

    def test_a_residual_map_is_a_multiple_of_the_identity(self):
        # Further latent numbers start unused.
        np.testing.assert_allclose(starts()["residual"], 0.9 * POINTS[:, :2], atol=0.03)

    def test_a_score_is_that_of_the_standard_normal(self):
        np.testing.assert_allclose(starts()["score"], -POINTS, atol=0.03)

    def test_a_conditional_score_is_that_of_the_smoothed_normal(self):
        for sigma, found in zip(LEVELS, starts()["smoothed"], strict=True):
            expected = -POINTS * sigma / (1 + sigma**2)
            np.testing.assert_allclose(sigma * found, expected, atol=0.03)

    def test_an_affine_map_is_the_identity(self):
        np.testing.assert_array_equal(starts()["affine"], POINTS)

    def test_a_mixture_map_is_one_gaussian(self):
        np.testing.assert_allclose(starts()["mixture"], POINTS, atol=0.03)

    def test_layers_are_scaled_by_their_inputs(self):
        weights = [np.asarray(layer.weight) for layer in starts()["layers"]]
        # The deviation of the uniform distribution on +- 1/sqrt(inputs). It is known to
        # sqrt(0.2 / n), 3 % for the smallest layer (n = 192); 15 % are 5 of them.
        expected = [inputs**-0.5 / np.sqrt(3) for inputs in (3, 64, 64, 64)]
        expected[-1] *= 0.01
        np.testing.assert_allclose([w.std() for w in weights], expected, rtol=0.15)
        # Units that start equal stay equal.
        flat = np.concatenate([w.ravel() for w in weights])
        assert len(np.unique(flat)) > 0.99 * len(flat)


def test_an_affine_map():
    rows, mean = [[0.5, 9.0], [2.0, -1.0]], [1.0, -1.0]
    network = eqx.tree_at(
        lambda n: (n.lower, n.mean),
        AffineMap(2),
        (jnp.float32(rows), jnp.float32(mean)),
    )
    factor = np.array([[np.exp(0.5), 0.0], [2.0, np.exp(-1.0)]])
    z = np.array([0.3, -0.2], np.float32)
    found, log_det = eqx.filter_jit(lambda n, z: (n(z), n.log_det()))(network, z)
    np.testing.assert_allclose(found, factor @ z + mean, rtol=1e-6)
    assert float(log_det) == pytest.approx(np.linalg.slogdet(factor)[1], rel=1e-6)


@pytest.mark.usefixtures("x64")
@described
def test_networks_stay_in_32_bit(description):
    network = build(description)
    assert {leaf.dtype for leaf in jax.tree.leaves(network)} == {np.dtype("float32")}
    x = jax.ShapeDtypeStruct((network.in_size,), jnp.float32)
    level = jax.ShapeDtypeStruct((), jnp.float32)
    levelled = getattr(network, "conditional", isinstance(network, networks.UNet))
    arguments = (x, level) if levelled else (x,)
    out = eqx.filter_eval_shape(lambda n, *a: n(*a), network, *arguments)
    assert out.dtype == jnp.float32
    assert out.shape == (network.out_size,)


@described
def test_static_fields_are_plain(description):
    network = build(description)
    for field in dataclasses.fields(network):
        if field.metadata.get("static"):
            assert isinstance(getattr(network, field.name), int | float | str | bool)
