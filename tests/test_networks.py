"""Networks: where they start, their precision, and what a file can build."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pushforward as pf
from described import (
    check_every_argument_is_stored,
    check_round_trip,
    check_static_fields_are_plain,
    check_stays_in_32_bit,
)
from pushforward import networks
from pushforward.errors import FileError, UsageError
from pushforward.networks import (
    MLP,
    AffineMap,
    MixtureMap,
    ResidualMap,
    ScoreMLP,
    build,
)

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
        "kind": "ParticleMap",
        "count": 3,
        "dim": 2,
        "width": 4,
        "layers": 2,
        "latent": 1,
        "is_centred": True,
        "score": False,
        "conditional": False,
        "activation": "silu",
    },
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
]
described = pytest.mark.parametrize(
    "description", DESCRIPTIONS, ids=lambda description: description["kind"]
)


def test_every_kind_is_tested():
    kinds = {description["kind"] for description in DESCRIPTIONS}
    ours = {
        name
        for name, kind in networks.KINDS.items()
        if kind.__module__.startswith("pushforward.")
    }
    assert ours == kinds


def test_a_mixture_map_stored_before_there_were_coupling_layers():
    old = {"kind": "MixtureMap", "in_size": 3, "width": 8, "depth": 1, "components": 4}
    network = build(old)
    assert isinstance(network, MixtureMap) and isinstance(network.map, ResidualMap)


class TestDescription:
    @described
    def test_round_trip(self, description):
        check_round_trip(description)

    @described
    def test_every_argument_is_stored(self, description):
        check_every_argument_is_stored(description)

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


class Bent(networks.AbstractNetwork):
    """A network of somebody else's."""

    weight: jax.Array
    in_size: int = eqx.field(static=True)
    out_size: int = eqx.field(static=True)
    bend: str = eqx.field(static=True)

    def __init__(self, in_size, bend="tanh", *, key):
        self.weight = jax.random.normal(key, (in_size, in_size), jnp.float32)
        self.in_size, self.out_size, self.bend = in_size, in_size, bend

    def __call__(self, x):
        return getattr(jnp, self.bend)(self.weight @ x)


class TestRegister:
    @pytest.fixture(autouse=True)
    def kinds(self, monkeypatch):
        """What is registered here is forgotten again."""
        for name in ("Bent", "Shifted", "MLP"):
            if name in networks.KINDS:
                monkeypatch.setitem(networks.KINDS, name, networks.KINDS[name])
            else:
                monkeypatch.setitem(networks.KINDS, name, None)
                del networks.KINDS[name]

    def test_a_kind_of_ones_own_is_loaded_by_its_name(self, tmp_path):
        sampler = pf.Sampler.from_network(Bent(2, "arctan", key=jax.random.key(0)))
        sampler.save(tmp_path / "before.pf")
        assert networks.register(Bent) is Bent
        sampler.save(tmp_path / "after.pf")
        again = pf.load(tmp_path / "after.pf")
        assert eqx.tree_equal(again.network, sampler.network)
        # A file says of its network what was known when it was written.
        with pytest.raises(FileError, match=r"test_networks\.Bent"):
            pf.load(tmp_path / "before.pf")
        del networks.KINDS["Bent"]
        sentence = r"of the kind 'Bent', .* import the module .* networks\.register"
        with pytest.raises(FileError, match=sentence):
            pf.load(tmp_path / "after.pf")
        assert pf.load(tmp_path / "after.pf", like=sampler).network.bend == "arctan"

    def test_a_taken_name_is_refused(self):
        class MLP(Bent):
            pass

        with pytest.raises(UsageError, match=r"'MLP' is that of pushforward\.networks"):
            networks.register(MLP)
        assert networks.KINDS["MLP"] is networks.MLP
        networks.register(networks.MLP)

    def test_a_class_that_is_defined_again_takes_its_own_place(self):
        def cell():
            @networks.register
            class Shifted(Bent):
                pass

            return Shifted

        _, last = cell(), cell()
        assert networks.KINDS["Shifted"] is last

    def test_what_no_file_could_hold_is_refused(self):
        class Forgets(Bent):
            def __init__(self, in_size, slope, *, key):
                super().__init__(in_size, key=key)

        with pytest.raises(UsageError, match="could not hold slope of Forgets"):
            networks.register(Forgets)

        class Fixed(Bent):
            def __init__(self, in_size):
                super().__init__(in_size, key=jax.random.key(0))

        with pytest.raises(UsageError, match="Fixed must take key="):
            networks.register(Fixed)
        for kind in (eqx.nn.MLP, Bent(2, key=jax.random.key(0)), "Bent"):
            with pytest.raises(UsageError, match="takes a subclass"):
                networks.register(kind)


class Centred(networks.AbstractBatchNetwork):
    """Batch normalisation, and nothing else."""

    scale: jax.Array
    mean: jax.Array
    variance: jax.Array
    in_size: int = eqx.field(static=True, default=2)
    out_size: int = eqx.field(static=True, default=2)

    def _apply(self, x, mean, variance):
        return self.scale * (x - mean) / jnp.sqrt(variance + 1e-5)

    def __call__(self, x):
        return self._apply(x, self.mean, self.variance)

    def train(self, batch, keep=0.9):
        mean, variance = jnp.mean(batch, axis=0), jnp.var(batch, axis=0)
        out = jax.vmap(lambda x: self._apply(x, mean, variance))(batch)
        kept = [
            keep * old + (1 - keep) * jax.lax.stop_gradient(new)
            for old, new in zip(self.statistics(), (mean, variance), strict=True)
        ]
        return out, eqx.tree_at(lambda n: n.statistics(), self, kept)

    def statistics(self):
        return [self.mean, self.variance]


class TestBatches:
    def test_statistics_are_estimated_anew_and_kept_apart(self):
        network = Centred(*jnp.float32([[1, 1], [0, 0], [1, 1]]))
        batch = 3 + 2 * jax.random.normal(jax.random.key(0), (64, 2), jnp.float32)
        out, seen = network.train(batch, keep=0.0)
        rested = networks.at_rest(network, batch[None])
        np.testing.assert_allclose(jax.vmap(rested)(batch), out, atol=1e-5)
        assert eqx.tree_equal(rested, seen)
        assert eqx.tree_equal(networks.with_statistics(rested, network), network)

    def test_statistics_follow_the_draws_in_training(self):
        """A map that shrinks its inputs tenfold: its draws have the scale of 1."""
        start = Centred(*jnp.float32([[1, 1], [5, 5], [100, 100]]))
        target = pf.Target(lambda x: -0.5 * jnp.sum(x**2), dim=2)
        method = pf.methods.DFT(
            network=start,
            score_network=networks.residual(4, 1),
            steps=4,
            batch_size=64,
            whiten=False,
            particles=16,
        )
        fit = pf.fit(jax.random.key(0), target, method, progress=False)
        sampler = fit.sampler
        # At rest by statistics of their own, and not by a moving average.
        np.testing.assert_allclose(sampler.network.mean, 0, atol=0.1)
        np.testing.assert_allclose(sampler.network.variance, 1, rtol=0.1)
        draws = sampler.sample(jax.random.key(1), 1000)
        np.testing.assert_allclose(draws.std(axis=0), 1, rtol=0.1)


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


@pytest.mark.parametrize(("is_centred", "score"), [(False, True), (True, False)])
def test_a_network_of_particles_moves_with_them(is_centred, score):
    count, dim = 4, 3
    key = jax.random.key(0)
    make = functools.partial(networks.ParticleMap, count, dim, 8, 2)
    options = {"is_centred": is_centred, "score": score, "conditional": score}
    network = make(latent=0 if score else 1, **options, key=key)
    network = jax.tree.map(lambda a: a + 0.1, network)
    levels = (jnp.asarray(0.7),) if score else ()
    constraints = "centred" if is_centred else None
    structure = pf.Target(
        lambda x: 0.0, example=jnp.zeros((count, dim)), constraints=constraints
    ).structure
    group = pf.symmetries.permutations() * pf.symmetries.rotations(reflections=True)
    action = group.bind(structure)
    order, element = jnp.array([2, 0, 3, 1], jnp.int32), action.random(key)
    element = (element[0], order)
    # In the precision of networks, whatever that of the coordinates is.
    x = jax.random.normal(jax.random.key(1), (network.out_size,), jnp.float32)
    own = jax.random.normal(key, (count,), jnp.float32)
    more, moved = (() if score else (a,) for a in (own, own[order]))

    def at(x, more):
        return network(jnp.concatenate([x, *more]), *levels)

    there = at(action.act(element, x), moved)
    wanted = action.act(element, at(x, more))
    np.testing.assert_allclose(there, wanted, rtol=1e-3, atol=1e-4)
    assert np.linalg.norm(there) > 0.1


def test_particles_need_their_number_of_coordinates():
    target = pf.Target(lambda x: -jnp.sum(x**2), dim=5)
    with pytest.raises(UsageError, match="8 coordinates, or 6 where"):
        networks.particles(4, 2).field(jax.random.key(0), target)


@pytest.mark.usefixtures("x64")
@described
def test_networks_stay_in_32_bit(description):
    level = jax.ShapeDtypeStruct((), jnp.float32)
    levels = (level,) if description.get("conditional") else ()
    check_stays_in_32_bit(description, *levels)


@described
def test_static_fields_are_plain(description):
    check_static_fields_are_plain(description)
