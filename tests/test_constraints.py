"""Constraints and trees of parameters: bijections, densities, names, files."""

import collections
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from pushforward.errors import FileError, UsageError
from pushforward.targets import Target, constrained, constraints
from pushforward.targets.constraints import KINDS, Constraint
from pushforward.targets.structure import Structure

# A constraint of every kind, and what its values obey.
SUPPORT = {
    "real": lambda x: np.isfinite(x),
    "positive": lambda x: x > 0,
    "greater_than(-2)": lambda x: x > -2,
    "less_than(1.5)": lambda x: x < 1.5,
    "unit_interval": lambda x: (x > 0) & (x < 1),
    "interval(-1, 3)": lambda x: (x > -1) & (x < 3),
    "ordered": lambda x: np.diff(x, axis=-1) > 0,
    "simplex": lambda x: (x > 0) & (np.abs(x.sum(-1, keepdims=True) - 1) < 1e-12),
    "zero_sum": lambda x: np.abs(x.sum(-1)) < 1e-12,
    "unit_vector": lambda x: np.abs((x**2).sum(-1) - 1) < 1e-12,
    "cholesky_correlation": lambda x: np.abs((x**2).sum(-1) - 1) < 1e-12,
    "correlation": lambda x: np.linalg.eigvalsh(x) > 0,
    "cholesky_covariance": lambda x: (
        (np.triu(x, 1) == 0) & (x * np.eye(4) + 1 - np.eye(4) > 0)
    ),
    "covariance": lambda x: np.linalg.eigvalsh(x) > 0,
    "circular": lambda x: (x >= -np.pi) & (x < np.pi),
    "centred": lambda x: np.abs(x.mean(-1, keepdims=True)) < 1e-12,
}
BOUNDS = {
    "greater_than([-2, -1, 0, 5])": lambda x: x > np.array([-2, -1, 0, 5]),
    "interval([-1, 0, 1, 2], 3)": lambda x: (x > np.arange(-1, 3)) & (x < 3),
}
MATRICES = ("cholesky_correlation", "correlation", "cholesky_covariance", "covariance")
texts = pytest.mark.parametrize("text", SUPPORT | BOUNDS)


def shape_of(text):
    return (4, 4) if text in MATRICES else (4,)


def chart(text, x):
    """Numbers that say which value it is, and in which its density is."""
    if text in MATRICES:
        diagonal = 0 if "covariance" in text else -1
        return x[np.tril_indices(4, diagonal)]
    return x[:-1] if text == "simplex" else x


def test_every_kind_is_tested():
    assert {Constraint.parse(text).kind for text in SUPPORT} == set(KINDS)


@pytest.mark.usefixtures("x64")
@pytest.mark.once
@texts
def test_round_trip_and_log_det(text):
    constraint, shape = Constraint.parse(text), shape_of(text)
    # A product of factors loses the digits of what it is made of.
    wide = 0.7 if text in ("correlation", "covariance") else 2
    free = wide * np.random.default_rng(0).normal(
        size=(20, *constraint.free_shape(shape))
    )

    @jax.jit
    @jax.vmap
    def everything(u):
        x = constraint.constrain(u)
        jacobian = jax.jacfwd(lambda u: chart(text, constraint.constrain(u)))(u)
        inside = constraint.contains(x)
        return x, constraint.free(x), constraint.log_det(u), jacobian, inside

    x, back, log_det, jacobian, inside = map(np.asarray, everything(jnp.asarray(free)))
    assert x.shape == (20, *shape)
    assert np.all((SUPPORT | BOUNDS)[text](x)) and inside.all()
    np.testing.assert_allclose(back, free, rtol=1e-9, atol=1e-9)
    # Of the volume, also where the numbers are more than the free ones.
    volume = np.log(np.linalg.svd(jacobian, compute_uv=False)).sum(axis=-1)
    np.testing.assert_allclose(log_det, volume, atol=1e-9)


# What takes a value out of its support.
LEAVE = {
    "unit_interval": lambda x: x + 1,
    "simplex": lambda x: x + 0.1,
    "zero_sum": lambda x: x + 1,
    "circular": lambda x: x * np.nan,
    "centred": lambda x: x + 1,
    "unit_vector": lambda x: 2 * x,
    "cholesky_correlation": lambda x: x + np.triu(np.ones((4, 4)), 1),
    "correlation": lambda x: x + np.eye(4),
    "covariance": lambda x: x + np.tril(np.ones((4, 4)), -1),
}


@texts
def test_what_is_outside(text):
    constraint, shape = Constraint.parse(text), shape_of(text)
    u = 0.3 * np.random.default_rng(1).normal(size=constraint.free_shape(shape))
    x = np.asarray(jax.jit(constraint.constrain)(jnp.asarray(u, float)))
    out = LEAVE.get(text, lambda x: -x + (10 if text.startswith("less") else -10))(x)
    if text == "real":
        out = x * np.nan
    inside = jax.jit(constraint.contains)
    found = [bool(inside(jnp.asarray(a, float))) for a in (x, out)]
    assert found == [True, False]


@texts
def test_far_out_in_32_bit(text):
    constraint = Constraint.parse(text)

    @jax.jit
    @jax.vmap
    def everything(u):
        return constraint.constrain(u), jax.value_and_grad(constraint.log_det)(u)

    u = np.ones((2, *constraint.free_shape(shape_of(text))), np.float32)
    for value in jax.tree.leaves(everything(30 * u * np.float32([[1], [-1]]))):
        assert np.isfinite(value).all()


# Constrained densities of one free coordinate with known normalisers.
DENSITIES = {
    "gamma": (
        "positive",
        lambda x: 1.5 * jnp.log(x) - 2 * x,
        special.gamma(2.5) / 2**2.5,
    ),
    "shifted": ("greater_than(-2)", lambda x: -3 * (x + 2), 1 / 3),
    "mirrored": ("less_than(1.5)", lambda x: -4 * (1.5 - x), 1 / 4),
    "beta": (
        "unit_interval",
        lambda x: 1.2 * jnp.log(x) + 0.7 * jnp.log1p(-x),
        special.beta(2.2, 1.7),
    ),
    "uniform": ("interval(-1, 3)", lambda x: 0.0 * x, 4.0),
    "von Mises": ("circular", lambda x: 1.5 * jnp.cos(x), 2 * np.pi * special.i0(1.5)),
    "normal": ("real", lambda x: -0.5 * x**2, np.sqrt(2 * np.pi)),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.once
class TestNormaliser:
    grid = np.linspace(-40, 40, 8001)

    def mass(self, target):
        assert target.dim == 1
        values = jax.jit(jax.vmap(target.log_density))(jnp.asarray(self.grid[:, None]))
        return np.exp(np.asarray(values)).sum() * (self.grid[1] - self.grid[0])

    @pytest.mark.parametrize("name", DENSITIES)
    def test_the_log_jacobian_keeps_the_mass(self, name):
        text, log_density, normaliser = DENSITIES[name]
        target = constrained(
            lambda p: log_density(p["t"]), {"t": text}, example={"t": 0.5}
        )
        assert self.mass(target) == pytest.approx(normaliser, rel=1e-9)

    def test_of_a_correlation(self):
        # The LKJ density of two variables: (1 - r^2)^(c - 1), on R and on its factor.
        exact = special.beta(1.7, 1.7) * 2 ** (2 * 1.7 - 1)
        whole = constrained(
            lambda p: 0.7 * jnp.log(1 - p["R"][1, 0] ** 2),
            {"R": "correlation"},
            example={"R": np.eye(2)},
        )
        assert self.mass(whole) == pytest.approx(exact, rel=1e-9)
        factor = constrained(
            lambda p: 1.4 * jnp.log(p["L"][1, 1]),
            {"L": "cholesky_correlation"},
            example={"L": np.eye(2)},
        )
        assert self.mass(factor) == pytest.approx(exact, rel=1e-9)

    def test_of_a_circle(self):
        # The von Mises density: 2 pi I_0(c).
        target = constrained(
            lambda p: 1.3 * p["x"][0] + 0.4 * p["x"][1],
            {"x": "unit_vector"},
            example={"x": np.ones(2)},
        )
        exact = 2 * np.pi * special.i0(np.hypot(1.3, 0.4))
        assert self.mass(target) == pytest.approx(exact, rel=1e-9)

    def test_of_a_simplex(self):
        # A Dirichlet of two weights, on the first of them.
        target = constrained(
            lambda p: jnp.sum(jnp.array([1.2, 0.7]) * jnp.log(p["w"])),
            {"w": "simplex"},
            example={"w": np.ones(2) / 2},
        )
        assert self.mass(target) == pytest.approx(special.beta(2.2, 1.7), rel=1e-9)


@pytest.mark.usefixtures("x64")
@pytest.mark.once
def test_an_open_chain_of_angles():
    """XY spins: log Z = n log 2 pi + (n - 1) log I0(1), neighbours I1(1) / I0(1)."""
    n, nodes = 3, 60
    target = Target(
        lambda x: jnp.sum(jnp.cos(jnp.diff(x))), dim=n, constraints="circular"
    )
    # Gauss-Hermite nodes: a normal is what a uniform angle is in the coordinate.
    u, weights = np.polynomial.hermite_e.hermegauss(nodes)
    grid = np.stack(np.meshgrid(*n * [u], indexing="ij"), -1).reshape(-1, n)
    product = np.prod(np.meshgrid(*n * [weights], indexing="ij"), axis=0).ravel()
    mass = product * np.exp(
        np.asarray(jax.jit(jax.vmap(target.log_density))(jnp.asarray(grid)))
        + 0.5 * np.sum(grid**2, axis=1)
    )
    wanted = n * np.log(2 * np.pi) + (n - 1) * np.log(special.i0(1))
    assert np.log(mass.sum()) == pytest.approx(wanted, abs=1e-3)
    angles = np.asarray(jax.vmap(target.structure.unflatten)(jnp.asarray(grid)))
    cosine = np.sum(mass * np.cos(angles[:, 1] - angles[:, 0])) / mass.sum()
    assert cosine == pytest.approx(special.i1(1) / special.i0(1), abs=2e-3)


def test_an_angle_and_a_full_turn_more_are_one():
    structure = Structure.vector(2, None, "circular")
    x = jnp.array([0.3, -2.0])
    for turns in (-3, 1):
        u = structure.flatten(x + 2 * jnp.pi * turns)
        np.testing.assert_allclose(u, structure.flatten(x), rtol=1e-4)
    seam = structure.flatten(jnp.array([jnp.pi, -jnp.pi]))
    assert np.isfinite(seam).all()
    assert structure.contains(x + 7)


def test_draws_and_scores_of_a_constrained_target():
    example = {"tau": 1.0, "w": np.ones(3) / 3, "mu": np.zeros(2)}
    target = constrained(
        lambda p: -p["tau"] + jnp.sum(jnp.log(p["w"])) - jnp.sum(p["mu"] ** 2),
        {"tau": "positive", "w": "simplex"},
        example=example,
        sample=lambda key, n: {
            "tau": jnp.ones(n),
            "w": jnp.ones((n, 3)) / 3,
            "mu": jnp.zeros((n, 2)),
        },
    )
    assert target.dim == 5
    assert target.names == ("mu[0]", "mu[1]", "tau", "w[0]", "w[1]")

    @jax.jit
    def everything(x):
        tree = target.structure.unflatten(x)
        exact = target.sample_flat(jax.random.key(0), 7)
        return tree, target.score(x), jax.grad(target.log_density)(x), exact

    tree, score, gradient, exact = everything(jnp.arange(5.0) / 5)
    assert tree["tau"] > 0
    assert float(np.sum(tree["w"])) == pytest.approx(1, abs=1e-6)
    np.testing.assert_allclose(score, gradient, rtol=1e-6)
    np.testing.assert_allclose(exact, np.zeros((7, 5)), atol=1e-6)


class TestParse:
    @texts
    def test_text_round_trip(self, text):
        constraint = Constraint.parse(text)
        assert Constraint.parse(str(constraint)) == constraint

    def test_bounds_of_each_number(self):
        lower, upper = np.array([[0, 1], [2, 1 / 3]]), jnp.asarray([[1.0, 2.0]] * 2) + 2
        constraint = constraints.interval(lower, upper)
        assert Constraint.parse(str(constraint)) == constraint
        assert hash(constraint) == hash(Constraint.parse(str(constraint)))
        target = Target(
            lambda p: 0.0, example={"x": lower}, constraints={"x": constraint}
        )
        x = target.structure.unflatten(jnp.zeros(4))["x"]
        np.testing.assert_allclose(x, (lower + np.asarray(upper)) / 2, rtol=1e-6)
        with pytest.raises(UsageError, match=r"bounds of the shape \(2, 2\), and the"):
            Target(jnp.sum, dim=2, constraints=constraint)
        with pytest.raises(UsageError, match="must be numbers or arrays of them"):
            constraints.greater_than(["low"])

    def test_numbers_survive(self):
        constraint = Constraint("interval", (1 / 3, 1e22))
        assert Constraint.parse(str(constraint)) == constraint

    def test_an_unknown_name_gets_the_list(self):
        with pytest.raises(UsageError, match="positiv") as caught:
            constrained(jnp.sum, {"t": "positiv"}, example={"t": 1.0})
        sentence = str(caught.value)
        assert "'t'" in sentence
        for kind in KINDS:
            assert kind in sentence

    @pytest.mark.parametrize(
        ("text", "shape"),
        [
            ("interval", "interval(lower, upper) with lower < upper"),
            ("interval(1)", "interval(lower, upper) with lower < upper"),
            ("interval(2, 1)", "interval(lower, upper) with lower < upper"),
            ("interval(0, 0)", "interval(lower, upper) with lower < upper"),
            ("interval(0,, 1)", "interval(lower, upper) with lower < upper"),
            ("interval(0, inf)", "interval(lower, upper) with lower < upper"),
            ("interval(a, b)", "interval(lower, upper) with lower < upper"),
            ("greater_than(nan)", "greater_than(bound)"),
            ("greater_than(1,)", "greater_than(bound)"),
            ("less_than()", "less_than(bound)"),
            ("positive(1)", "positive"),
            ("interval([0, 1], [1, 1])", "interval(lower, upper) with lower < upper"),
            (
                "interval([0, 1], [2, 3, 4])",
                "interval(lower, upper) with lower < upper",
            ),
            ("greater_than([0, [1]])", "greater_than(bound)"),
            ("greater_than([])", "greater_than(bound)"),
            ("greater_than([NaN])", "greater_than(bound)"),
            ("less_than([__import__])", "less_than(bound)"),
        ],
    )
    def test_wrong_numbers_get_the_right_form(self, text, shape):
        with pytest.raises(UsageError) as caught:
            constrained(jnp.sum, {"t": text}, example={"t": 1.0})
        assert str(caught.value) == f"The constraint {text!r} on 't' must read {shape}."

    @pytest.mark.parametrize(
        "text", ["", "positive; x", "interval(0, (1))", "__import__"]
    )
    def test_nothing_else_is_read(self, text):
        with pytest.raises(UsageError, match="is not known; the constraints are"):
            Constraint.parse(text)

    def test_a_name_that_example_lacks(self):
        example = {"group": {"tau": 1.0}, "mu": 0.0}
        with pytest.raises(UsageError, match=r"did you mean 'group\.tau'\?"):
            constrained(jnp.sum, {"group.ta": "positive"}, example=example)
        with pytest.raises(UsageError, match=r"it has \['group\.tau', 'mu'\]"):
            constrained(jnp.sum, {"xyz": "positive"}, example=example)

    @pytest.mark.parametrize(
        "value", [1.0, np.ones(3), np.ones((2, 3)), np.ones((1, 1))]
    )
    def test_matrices_are_square(self, value):
        with pytest.raises(
            UsageError, match=r"'correlation' on 'w' needs a square mat"
        ):
            constrained(jnp.sum, {"w": "correlation"}, example={"w": value})

    @pytest.mark.parametrize("text", ["simplex", "ordered", "zero_sum", "unit_vector"])
    @pytest.mark.parametrize("value", [1.0, np.ones(1), np.ones((3, 1))])
    def test_vectors_need_two_numbers(self, text, value):
        with pytest.raises(UsageError, match=f"'{text}' on 'w' needs a vector of at"):
            constrained(jnp.sum, {"w": text}, example={"w": value})


Point = collections.namedtuple("Point", ["x", "y"])


class Module(eqx.Module):
    x: jax.Array


NESTED = {
    "scale": 1.0,
    "layers": [np.zeros((2, 3)), (np.zeros(2), 0.0)],
    "group": {"w": np.ones((2, 3)) / 3, "nothing": []},
}


class TestTree:
    def structure(self):
        return Structure.of(NESTED, {"scale": "positive", "group.w": "simplex"})

    def test_names_and_sizes(self):
        structure = self.structure()
        assert structure.size == 4 + 6 + 2 + 1 + 1
        assert structure.names == (
            *(f"group.w[{i},{j}]" for i in range(2) for j in range(2)),
            *(f"layers.0[{i},{j}]" for i in range(2) for j in range(3)),
            *("layers.1.0[0]", "layers.1.0[1]", "layers.1.1"),
            "scale",
        )

    def test_round_trip(self):
        structure = self.structure()
        u = np.linspace(-1.0, 1.0, 3 * structure.size).reshape(3, -1)

        @jax.jit
        def both(u):
            draws = jax.vmap(structure.unflatten)(u)
            one = jax.tree.map(lambda a: a[0], draws)
            return one, structure.flatten(one), structure.flatten_draws(draws)

        tree, flat, flat_draws = both(jnp.asarray(u, float))
        assert jax.tree.structure(tree) == jax.tree.structure(NESTED)
        assert jax.tree.map(np.shape, tree) == jax.tree.map(np.shape, NESTED)
        np.testing.assert_allclose(np.sum(tree["group"]["w"], axis=-1), 1, rtol=1e-6)
        np.testing.assert_allclose(flat, u[0], atol=1e-5)
        np.testing.assert_allclose(flat_draws, u, atol=1e-5)

    def test_the_example_itself_is_a_point(self):
        # With Python numbers and whole numbers in it.
        example = {"a": 1, "b": np.arange(3), "c": 2.0}
        structure = Structure.of(example, {"c": "positive"})
        expected = [1, 0, 1, 2, np.log(2)]
        np.testing.assert_allclose(structure.flatten(example), expected, rtol=1e-6)

    @pytest.mark.usefixtures("x64")
    @pytest.mark.once
    def test_log_det(self):
        structure = self.structure()

        def free_part(u):
            # All coordinates but the last of each simplex.
            tree = structure.unflatten(u)
            tree["group"]["w"] = tree["group"]["w"][:, :-1]
            return jnp.concatenate([jnp.ravel(a) for a in jax.tree.leaves(tree)])

        u = jnp.linspace(-1.0, 1.0, structure.size)
        log_det, jacobian = jax.jit(
            lambda u: (structure.log_det(u), jax.jacfwd(free_part)(u))
        )(u)
        expected = np.linalg.slogdet(np.asarray(jacobian))[1]
        assert float(log_det) == pytest.approx(expected, rel=1e-10)

    def test_a_bare_array(self):
        structure = Structure.of(np.zeros((2, 2)))
        assert structure.names == ("x[0,0]", "x[0,1]", "x[1,0]", "x[1,1]")
        assert structure.unflatten(jnp.arange(4.0)).shape == (2, 2)

    def test_vectors(self):
        assert Structure.vector(2).names == ("x[0]", "x[1]")
        assert Structure.vector(2, ("a", "b")).names == ("a", "b")
        with pytest.raises(UsageError, match="holds 1 names but the density has 2"):
            Structure.vector(2, ("a",))
        with pytest.raises(UsageError, match="at least 1, not 0"):
            Structure.vector(0)

    def test_bad_examples(self):
        with pytest.raises(UsageError, match="nothing to sample"):
            Structure.of({"a": [], "b": np.zeros((0, 3))})
        with pytest.raises(UsageError, match=r"would be called 'a\.b'"):
            Structure.of({"a": {"b": 1.0}, "a.b": 2.0})
        with pytest.raises(UsageError, match="Say the shape of the parameters once"):
            Target(jnp.sum, 2, example={"a": 1.0})
        with pytest.raises(UsageError, match="Say the shape of the parameters once"):
            Target(jnp.sum)
        with pytest.raises(UsageError, match="a tree's own keys name"):
            Target(jnp.sum, example={"a": 1.0}, names=("a",))

    def test_draws_of_another_shape(self):
        structure = Structure.of({"a": 0.0, "b": np.zeros(2)})
        with pytest.raises(UsageError, match="The draws have the structure"):
            structure.flatten_draws({"a": np.zeros(3)})
        with pytest.raises(UsageError, match=r"of 'b' have the shape \(3, 4\), "):
            structure.flatten_draws({"a": np.zeros(3), "b": np.zeros((3, 4))})


class TestFile:
    @pytest.mark.parametrize(
        "structure",
        [
            Structure.of(NESTED, {"scale": "interval(0.1, 3)", "group.w": "simplex"}),
            Structure.vector(3),
            Structure.vector(2, ("a", "b")),
            Structure.of((1.0,)),
            Structure.of(np.zeros((2, 2))),
        ],
        ids=["nested", "vector", "named", "tuple", "array"],
    )
    def test_json_round_trip(self, structure):
        text = json.dumps(structure.to_json())
        again = Structure.from_json(json.loads(text))
        assert again == structure
        assert hash(again) == hash(structure)

    @pytest.mark.parametrize(
        "example",
        [Point(1.0, 2.0), Module(jnp.zeros(2)), {"a": [Point(1.0, 2.0)]}, {1: 0.0}],
        ids=["namedtuple", "module", "inside", "keys"],
    )
    def test_a_tree_that_a_file_cannot_hold(self, example):
        data = json.loads(json.dumps(Structure.of(example).to_json()))
        assert data["tree"] is None
        with pytest.raises(FileError, match=r"load\(path, like=target\)"):
            Structure.from_json(data)

    @pytest.mark.parametrize(
        "damage",
        [
            {"tree": {"dict": {"a": {"leaf": 0}, "b": {"leaf": 1}}}},
            {"tree": {"code": "import os"}},
            {"tree": {}},
            {"tree": 3},
            {"leaves": []},
            {"leaves": [{"name": "a", "shape": ["x"], "constraint": "real"}]},
            {"leaves": [{"name": "a", "shape": [], "constraint": "simplex"}]},
            {"leaves": [{"name": "a", "shape": [2], "constraint": "unheard"}]},
            {"leaves": [{"name": "a"}]},
            {"names": ["a", "b", "c"]},
        ],
        ids=str,
    )
    def test_a_damaged_description(self, damage):
        data = Structure.of({"a": np.zeros(2)}).to_json() | damage
        with pytest.raises(FileError, match="description of its parameters is damaged"):
            Structure.from_json(data)


@pytest.mark.parametrize(
    "text", ["unit_interval", "interval(-1, 3)", "greater_than(-2)", "less_than(1.5)"]
)
def test_rounding_stays_off_the_bounds(text):
    """A density may have a pole there."""
    u = jnp.array([-200.0, -60.0, 60.0, 80.0])
    bounded = u[:2] if text.startswith(("greater", "less")) else u
    x = np.asarray(Constraint.parse(text).constrain(bounded))
    assert SUPPORT[text](x).all(), x


def test_a_constraint_on_a_group():
    with pytest.raises(UsageError, match=r"one by one, such as 'mix\.p'"):
        constrained(lambda p: 0.0, {"mix": "positive"}, example={"mix": {"p": 1.0}})
