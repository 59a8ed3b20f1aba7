"""A sampler is a distribution: draws, densities, and what JAX does with them."""

import collections
import os
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pushforward as pf
from pushforward import sampler as module
from pushforward.errors import FileError, MissingDependencyError, UsageError
from pushforward.networks import (
    MLP,
    AffineMap,
    CouplingMap,
    MixtureMap,
    ResidualMap,
)
from pushforward.targets.preconditioner import Preconditioner
from pushforward.targets.structure import Structure

KEY = jax.random.key(7)


def shaken(tree, size=0.1):
    """The same arrays, moved at random."""
    rng = np.random.default_rng(3)
    return jax.tree.map(
        lambda a: a + jnp.asarray(size * rng.normal(size=a.shape), a.dtype), tree
    )


def preconditioner(dim):
    """One with every part: a bend in half of the coordinates, and a full factor."""
    rng = np.random.default_rng(dim)
    lower = np.tril(0.3 * rng.normal(size=(dim, dim)), -1)
    parts = (
        rng.normal(size=dim),
        np.exp(0.3 * rng.normal(size=dim)),
        np.where(np.arange(dim) % 2 == 0, 0.3, 0.0),
        0.1 * rng.normal(size=dim),
        lower + np.diag(np.exp(0.2 * rng.normal(size=dim))),
    )
    return Preconditioner(*(jnp.asarray(part, float) for part in parts))


def mixture(dim, layers=4):
    return shaken(MixtureMap(dim + 1, 8, 1, 3, layers, key=KEY))


MAPS = {
    "affine": lambda dim: shaken(AffineMap(dim), 0.3),
    "coupling": lambda dim: shaken(CouplingMap(dim, 4, 8, 1, key=KEY)),
    "flow": lambda dim: shaken(
        CouplingMap(dim, 4, 8, 1, halves="alternating", key=KEY)
    ),
    "coupling of splines": lambda dim: shaken(
        CouplingMap(dim, 4, 8, 1, bins=6, bound=2.0, key=KEY)
    ),
    "mixture": mixture,
    "spline": lambda dim: shaken(MixtureMap(dim + 1, 8, 1, 3, bins=8, key=KEY), 0.2),
}

# One with every kind of constraint, some of them in groups.
EXAMPLE = {
    "a": jnp.zeros(2),
    "tau": 1.0,
    "group": {"low": 3.0, "high": -jnp.ones(2)},
    "p": 0.5,
    "box": 1.0,
    "cuts": jnp.arange(3.0),
    "w": [jnp.ones(3) / 3],
}
CONSTRAINTS = {
    "tau": "positive",
    "group.low": "greater_than(2)",
    "group.high": "less_than(-0.5)",
    "p": "unit_interval",
    "box": "interval(0, 10)",
    "cuts": "ordered",
    "w.0": "simplex",
}


def tree_sampler(network=mixture):
    structure = Structure.of(EXAMPLE, CONSTRAINTS)
    return pf.Sampler(
        network(structure.size), preconditioner(structure.size), structure
    )


def assert_trees_close(a, b, **how):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, **how)


class TestShapes:
    def test_draws_are_the_users_tree_with_the_shape_in_front(self):
        ours = tree_sampler()
        for shape, leading in (((), ()), (4, (4,)), ((2, 3), (2, 3)), (0, (0,))):
            draws = ours.sample(KEY, shape)
            shapes = jax.tree.map(lambda a, n=leading: n + np.shape(a), EXAMPLE)
            assert jax.tree.map(np.shape, draws) == shapes
            x, log_p = ours.sample_and_log_prob(KEY, shape)
            assert jax.tree.map(np.shape, x) == shapes
            assert log_p.shape == ours.log_prob(x).shape == leading

    def test_a_smaller_number_of_draws_is_the_beginning_of_a_larger(self, monkeypatch):
        # Three blocks, the last of them cut.
        monkeypatch.setattr(module, "BLOCK", 400)
        ours = tree_sampler()
        many = ours.sample(KEY, 1000)
        few = jax.tree.map(lambda a: a[:10], many)
        assert_trees_close(ours.sample(KEY, 10), few, rtol=1e-6, atol=1e-6)
        some = jax.tree.map(lambda a: a[:15].reshape(3, 5, *a.shape[1:]), many)
        assert_trees_close(ours.sample(KEY, (3, 5)), some, rtol=1e-6, atol=1e-6)
        first = jax.tree.map(lambda a: a[0], many)
        assert_trees_close(ours.sample(KEY), first, rtol=1e-6, atol=1e-6)
        batches = list(ours.iter_batches(KEY, 1000, 300))
        assert [len(batch["tau"]) for batch in batches] == [300, 300, 300, 100]
        whole = jax.tree.map(lambda *parts: np.concatenate(parts), *batches)
        assert_trees_close(whole, many, rtol=1e-6, atol=1e-6)
        # And so are the densities, which go through blocks of their own.
        x, log_p = ours.sample_and_log_prob(KEY, 1000)
        assert_trees_close(x, many, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(ours.log_prob(x), log_p, rtol=1e-4, atol=1e-3)

    def test_points_of_many_coordinates_come_in_smaller_blocks(self):
        sampler = pf.Sampler.from_network(ResidualMap(1024, 1024, 4, 1, key=KEY))
        assert sampler.block_size == 1024

    def test_a_key_of_the_old_style(self):
        ours = pf.Sampler.from_network(AffineMap(2))
        old, new = jax.random.PRNGKey(3), jax.random.key(3)
        np.testing.assert_array_equal(ours.sample(old, 5), ours.sample(new, 5))

    @pytest.mark.parametrize("shape", [-1, 2.5, (3, -1), "3", (2, 1.0)], ids=str)
    def test_what_is_not_a_shape(self, shape):
        ours = pf.Sampler.from_network(AffineMap(2))
        with pytest.raises(UsageError, match="must be a whole number of at least 0"):
            module._shape(shape)
        with pytest.raises(UsageError, match="at most 4,294,967,296 draws"):
            ours.sample(KEY, (2**17, 2**16))

    def test_draws_are_those_of_the_distribution(self):
        ours = pf.Sampler.from_network(AffineMap(3), noise_scale=2.0)
        draws = np.asarray(ours.sample(KEY, 20_000))
        np.testing.assert_allclose(draws.mean(axis=0), 0, atol=5 * 5**0.5 / 141)
        np.testing.assert_allclose(np.cov(draws.T), 5 * np.eye(3), atol=0.25)


class TestTransformations:
    def test_jit(self):
        ours = tree_sampler()
        draw = jax.jit(ours.sample, static_argnums=1)
        assert_trees_close(draw(KEY, 100), ours.sample(KEY, 100), rtol=1e-5, atol=1e-5)
        x = ours.sample(KEY, 4)
        np.testing.assert_allclose(
            jax.jit(ours.log_prob)(x), ours.log_prob(x), rtol=1e-5, atol=1e-5
        )
        both = jax.jit(ours.sample_and_log_prob, static_argnums=1)(KEY, 4)
        assert_trees_close(both, ours.sample_and_log_prob(KEY, 4), rtol=1e-4, atol=1e-4)

    def test_a_method_goes_through_jit_as_an_argument(self):
        ours = pf.Sampler.from_network(AffineMap(2))
        found = jax.jit(lambda draw, key: draw(key, 3))(ours.sample, KEY)
        np.testing.assert_allclose(found, ours.sample(KEY, 3), rtol=1e-6)

    def test_vmap_over_keys(self):
        ours, keys = tree_sampler(), jax.random.split(KEY, 3)
        many = jax.vmap(lambda key: ours.sample(key, 5))(keys)
        one = jax.tree.map(lambda a: a[1], many)
        assert_trees_close(one, ours.sample(keys[1], 5), rtol=1e-5, atol=1e-5)

    def test_vmap_over_points(self):
        ours = tree_sampler()
        x = ours.sample(KEY, 6)
        np.testing.assert_allclose(
            jax.vmap(ours.log_prob)(x), ours.log_prob(x), rtol=1e-5, atol=1e-5
        )

    def test_the_gradient_of_a_gaussian(self):
        mean, factor = jnp.array([1.0, -2.0]), jnp.array([[2.0, 0.0], [1.0, 0.5]])
        ours = pf.Sampler.from_network(
            AffineMap(2), preconditioner=Preconditioner.affine(mean, factor)
        )
        x = jnp.array([0.3, 0.7])
        expected = -jnp.linalg.solve(factor @ factor.T, x - mean)
        np.testing.assert_allclose(jax.grad(ours.log_prob)(x), expected, rtol=1e-4)

    def test_the_gradient_through_every_layer(self, x64):
        # Networks are in 32-bit, so differences are wide and tolerances loose.
        ours = tree_sampler().unconstrained()
        x = ours.sample(KEY)
        slope = jax.grad(ours.log_prob)(x)
        for i in range(ours.dim):
            step = 1e-2 * jnp.eye(ours.dim)[i]
            rise = (ours.log_prob(x + step) - ours.log_prob(x - step)) / 2e-2
            np.testing.assert_allclose(slope[i], rise, rtol=0.02, atol=0.02)

    def test_the_gradient_in_the_weights(self):
        ours = tree_sampler()
        x = ours.sample(KEY, 8)
        found = eqx.filter_grad(lambda s: jnp.mean(s.log_prob(x)))(ours)
        for name, gradient in found.arrays().items():
            assert np.isfinite(gradient).all(), name
        assert np.abs(found.network.logits).max() > 0

    def test_the_gradient_of_draws(self):
        ours = pf.Sampler.from_network(AffineMap(2))
        found = eqx.filter_grad(lambda s: jnp.sum(s.sample(KEY, 4)))(ours)
        np.testing.assert_allclose(found.network.mean, [4.0, 4.0])

    def test_nothing_is_compiled_twice(self):
        traces = []

        class Counted(eqx.Module):
            weight: jax.Array
            in_size: int = eqx.field(static=True, default=2)
            out_size: int = eqx.field(static=True, default=2)

            def __call__(self, z):
                traces.append(1)
                return self.weight * z

        for weight in (1.0, 2.0, 3.0):
            ours = pf.Sampler.from_network(Counted(jnp.asarray(weight, jnp.float32)))
            for seed in range(2):
                ours.sample(jax.random.key(seed), 7)
                list(ours.iter_batches(jax.random.key(seed), 20, 8))
        # One program for `sample`, one for batches of eight.
        assert len(traces) == 2


class TestDensity:
    @pytest.mark.parametrize("kind", MAPS)
    @pytest.mark.parametrize("dim", [2, 5])
    def test_every_map(self, kind, dim):
        ours = pf.Sampler(MAPS[kind](dim), preconditioner(dim), Structure.vector(dim))
        assert ours.has_density
        x, log_p = ours.sample_and_log_prob(KEY, 500)
        np.testing.assert_allclose(x, ours.sample(KEY, 500), rtol=1e-4, atol=1e-4)
        bar = 1e-4 * np.maximum(1, np.abs(log_p))
        assert (np.abs(ours.log_prob(x) - log_p) <= bar).all()
        # By the Jacobian of the whole map, where z is the only thing that is drawn.
        if kind not in ("mixture", "spline"):
            z, none = ours._latent(KEY, jnp.uint32(3))
            jacobian = jax.jacfwd(lambda z: ours._place(z, none))(z)
            expected = jax.scipy.stats.norm.logpdf(z).sum()
            expected -= jnp.linalg.slogdet(jacobian)[1]
            np.testing.assert_allclose(log_p[3], expected, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("name", CONSTRAINTS)
    def test_every_constraint(self, name, x64):
        # In 64-bit: close to a bound, 32 bits do not hold the distance to it.
        example = EXAMPLE
        for part in name.split("."):
            example = example[int(part) if part.isdigit() else part]
        structure = Structure.of({"x": example}, {"x": CONSTRAINTS[name]})
        dim = structure.size
        network = AffineMap(1) if dim == 1 else mixture(dim)
        ours = pf.Sampler(network, preconditioner(dim), structure)
        x, log_p = ours.sample_and_log_prob(KEY, 300)
        bar = 1e-4 * np.maximum(1, np.abs(log_p))
        assert (np.abs(ours.log_prob(x) - log_p) <= bar).all()
        # The density of the unconstrained coordinates, and the Jacobian's determinant.
        flat, log_p_flat = ours.unconstrained().sample_and_log_prob(KEY, 300)

        def constrained(u):
            leaf = structure.unflatten(u)["x"]
            leaf = leaf[:-1] if CONSTRAINTS[name] == "simplex" else leaf
            return jnp.atleast_1d(leaf)

        jacobians = jax.vmap(jax.jacfwd(constrained))(flat)
        expected = log_p_flat - jnp.linalg.slogdet(jacobians)[1]
        np.testing.assert_allclose(log_p, expected, rtol=1e-6, atol=1e-5)

    def test_a_tree_of_all_of_them(self):
        ours = tree_sampler()
        x, log_p = ours.sample_and_log_prob(KEY, (10, 50))
        bar = 1e-4 * np.maximum(1, np.abs(log_p))
        close = np.abs(ours.log_prob(x) - log_p) <= bar
        # In 32-bit a few draws are so close to a bound that they have lost digits.
        assert close.mean() > 0.98

    @pytest.mark.parametrize(
        ("constraints", "box"),
        [
            (None, ((-14.0, 14.0), (-14.0, 14.0))),
            (("positive", "interval(-1, 2)"), ((0.0, 300.0), (-1.0, 2.0))),
        ],
        ids=["plain", "constrained"],
    )
    def test_it_integrates_to_one_on_a_grid(self, constraints, box):
        example = {"a": 1.0, "b": 0.0}
        named = dict(zip("ab", constraints or (), strict=bool(constraints)))
        ours = pf.Sampler(
            mixture(2), Preconditioner.identity(2), Structure.of(example, named)
        )
        # Where a is positive, a grid that is even in its logarithm.
        count = 700
        middles = (np.arange(count) + 0.5) / count
        sides, weights = [], []
        for (low, high), positive in zip(box, (bool(constraints), False), strict=True):
            if positive:
                logs = np.log(1e-3) + middles * np.log(high / 1e-3)
                sides.append(np.exp(logs))
                weights.append(np.exp(logs) * np.log(high / 1e-3) / count)
            else:
                sides.append(low + middles * (high - low))
                weights.append(np.full(count, (high - low) / count))
        a, b = (jnp.asarray(g, float) for g in np.meshgrid(*sides, indexing="ij"))
        density = np.exp(np.asarray(ours.log_prob({"a": a, "b": b}), np.float64))
        total = np.einsum("ij,i,j->", density, *weights)
        assert total == pytest.approx(1, abs=0.01)

    def test_a_simplex_integrates_to_one(self):
        structure = Structure.of(jnp.ones(3) / 3, {"": "simplex"})
        ours = pf.Sampler(mixture(2), Preconditioner.identity(2), structure)
        middles = (np.arange(600) + 0.5) / 600
        a, b = np.meshgrid(middles, middles, indexing="ij")
        x = jnp.asarray(np.stack([a, b, 1 - a - b], axis=-1), float)
        # Outside of the triangle the density is 0.
        log_p = np.asarray(ours.log_prob(x), np.float64)
        assert np.isneginf(log_p[a + b > 1.001]).all()
        assert np.exp(log_p).mean() == pytest.approx(1, abs=0.01)

    def test_outside_the_constraints_it_is_zero(self):
        ours = tree_sampler()
        inside = ours.sample(KEY)
        outside = {
            "tau": -1.0,
            "p": 1.5,
            "box": 10.0,
            "cuts": jnp.array([1.0, 0.0, 2.0]),
            "w": [jnp.array([0.5, 0.5, 0.5])],
        }
        assert np.isfinite(ours.log_prob(inside))
        for name, value in outside.items():
            x = {**inside, name: value}
            assert float(ours.log_prob(x)) == -np.inf, name
            gradient = jax.grad(ours.log_prob)(
                jax.tree.map(lambda a: jnp.asarray(a, float), x)
            )
            for leaf in jax.tree.leaves(gradient):
                assert np.isfinite(leaf).all(), name

    @pytest.mark.parametrize(
        ("make", "why"),
        [
            (lambda: pf.Sampler.from_network(MLP(3, 2, 4, 1, key=KEY)), "network .MLP"),
            (
                lambda: pf.Sampler.from_network(AffineMap(2), noise_scale=0.1),
                "adds noise",
            ),
            (
                lambda: pf.Sampler.from_network(MixtureMap(3, 4, 1, 2, key=KEY)),
                r"network \(MixtureMap",
            ),
            (
                lambda: pf.Sampler.from_network(ResidualMap(2, 2, 4, 1, key=KEY)),
                r"network \(ResidualMap",
            ),
        ],
    )
    def test_where_there_is_none(self, make, why):
        ours = make()
        assert not ours.has_density
        for ask in (
            lambda: ours.log_prob(jnp.zeros(2)),
            lambda: ours.sample_and_log_prob(KEY, 3),
        ):
            with pytest.raises(UsageError, match=f"{why}.*methods.Flow"):
                ask()

    def test_whether_there_is_one_is_known_when_nothing_else_is(self):
        @eqx.filter_jit
        def known(sampler):
            return sampler.has_density

        assert known(pf.Sampler.from_network(AffineMap(2)))
        assert not known(pf.Sampler.from_network(AffineMap(2), noise_scale=0.5))

    @pytest.mark.parametrize(
        ("x", "said"),
        [
            (jnp.zeros(3), r"shape \(3,\), which does not end in \(2,\)"),
            ({"a": jnp.zeros(2)}, "structure"),
        ],
    )
    def test_points_of_another_shape(self, x, said):
        ours = pf.Sampler.from_network(AffineMap(2))
        with pytest.raises(UsageError, match=said):
            ours.log_prob(x)

    def test_leading_shapes_that_differ(self):
        ours = tree_sampler()
        x = ours.sample(KEY, 4)
        with pytest.raises(UsageError, match="all arrays need the same"):
            ours.log_prob({**x, "tau": x["tau"][:3]})

    def test_64_bit(self, x64):
        ours = tree_sampler()
        x, log_p = ours.sample_and_log_prob(KEY, 200)
        assert {leaf.dtype for leaf in jax.tree.leaves((x, log_p))} == {np.dtype(float)}
        bar = 1e-4 * np.maximum(1, np.abs(log_p))
        assert (np.abs(ours.log_prob(x) - log_p) <= bar).all()


class TestMaking:
    def test_from_a_network_and_a_target(self):
        target = pf.Target(
            lambda p: -p["tau"], example={"tau": 1.0}, constraints={"tau": "positive"}
        )
        ours = pf.Sampler.from_network(AffineMap(1), target=target)
        assert (np.asarray(ours.sample(KEY, 50)["tau"]) > 0).all()

    @pytest.mark.parametrize("how", [{"dim": 3}, {"target": 3}], ids=str)
    def test_a_network_of_another_size(self, how):
        if "target" in how:
            how = {"target": pf.Target(lambda x: -jnp.sum(x**2), dim=3)}
        with pytest.raises(UsageError, match="gives 2 numbers, and there are 3"):
            pf.Sampler.from_network(AffineMap(2), **how)

    def test_a_network_of_anothers_class(self, tmp_path):
        network = eqx.nn.MLP(3, 2, 8, 1, dtype=jnp.float32, key=KEY)
        ours = pf.Sampler.from_network(network)
        draws = ours.sample(KEY, 6)
        path = ours.save(tmp_path / "own.pf")
        with pytest.raises(FileError, match=r"class 'equinox.*MLP'.*like=network"):
            pf.load(path)
        fresh = eqx.nn.MLP(3, 2, 8, 1, dtype=jnp.float32, key=jax.random.key(0))
        for like in (fresh, pf.Sampler.from_network(fresh)):
            np.testing.assert_array_equal(pf.load(path, like).sample(KEY, 6), draws)
        other = eqx.nn.MLP(3, 2, 9, 1, dtype=jnp.float32, key=KEY)
        with pytest.raises(FileError, match="does not fit"):
            pf.load(path, like=other)

    def test_what_is_printed(self):
        for ours in (
            tree_sampler(),
            pf.Sampler.from_network(AffineMap(2), noise_scale=0.1),
        ):
            text = repr(ours)
            assert 1 <= len(text.splitlines()) <= 3
            assert len(text) < 400
        assert "AffineMap" in text and "density not known" in text


_CALL = """
import sys, jax, numpy as np
assert "pushforward" not in sys.modules
program = jax.export.deserialize(open("s.jaxexport", "rb").read())
key = jax.random.key_data(jax.random.key(5))
draws, log_p = program.call(key, jax.numpy.arange(40, dtype="uint32"))
np.savez("draws.npz", tau=draws["tau"], w=draws["w"][0], log_p=log_p)
assert "pushforward" not in sys.modules
"""


@pytest.mark.once
def test_an_export_without_flatbuffers(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    monkeypatch.delitem(sys.modules, "jax._src.export.serialization", raising=False)
    ours = pf.Sampler(AffineMap(1), preconditioner(1), Structure.vector(1))
    with pytest.raises(MissingDependencyError, match=r"pushforward\[export\]"):
        ours.export(tmp_path / "s.jaxexport")
    assert not list(tmp_path.iterdir())


@pytest.mark.once
def test_an_exported_program_needs_jax_alone(tmp_path):
    flatbuffers = pytest.importorskip("flatbuffers")
    structure = Structure.of(
        {"tau": 1.0, "w": [np.ones(3) / 3]}, {"tau": "positive", "w.0": "simplex"}
    )
    ours = pf.Sampler(mixture(3), preconditioner(3), structure)
    ours.export(tmp_path / "s.jaxexport", log_prob=True)
    done = subprocess.run(
        [sys.executable, "-c", "import jax.export" + _CALL],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(Path(flatbuffers.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    draws, log_p = ours.sample_and_log_prob(jax.random.key(5), 40)
    with np.load(tmp_path / "draws.npz") as there:
        np.testing.assert_allclose(there["tau"], draws["tau"], rtol=1e-5)
        np.testing.assert_allclose(there["w"], draws["w"][0], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(there["log_p"], log_p, rtol=1e-4, atol=1e-4)
    module = pf.Sampler(
        AffineMap(1), preconditioner(1), Structure.of(collections.OrderedDict(a=1.0))
    )
    with pytest.raises(UsageError, match="a tree of your own classes"):
        module.export(tmp_path / "t.jaxexport")
    assert not (tmp_path / "t.jaxexport").exists()
