"""Every kind of target answers for itself, and a wrapper for what it wraps."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pushforward as pf
from pushforward.errors import UsageError
from pushforward.mcmc import Initialisation, register_initialisation
from pushforward.mcmc.initialise import initialise
from pushforward.targets import (
    MinibatchTarget,
    NoiseConditionalTarget,
    ScoreTarget,
    Target,
)
from pushforward.targets.base import SCALAR, Knowledge, UserFunction, VarianceReduction
from pushforward.targets.constraints import Constraint
from pushforward.targets.examine import examine
from pushforward.targets.preconditioner import Preconditioned, Preconditioner
from pushforward.targets.stacked import StackedTargets, SwitchTarget
from pushforward.targets.structure import Structure

ROWS = np.linspace(-1.0, 2.0, 7)
KEYS = jax.random.split(jax.random.key(0), 2)


def normal(x):
    return -0.5 * jnp.sum(x**2)


def of_row(x, row):
    return -0.5 * jnp.sum((x - row) ** 2)


def smoothed(x, sigma):
    return -x / (1 + sigma**2)


KINDS = {
    "density": Target(normal, 2),
    "score": ScoreTarget(jnp.negative, 2),
    "minibatch": MinibatchTarget(normal, of_row, ROWS, 2, batch_size=3),
    "noise": NoiseConditionalTarget(smoothed, 2, sigma_range=(0.5, 2.0)),
}


def wrapped(target):
    """The target behind each of the wrappers."""
    return [
        Preconditioned(target, Preconditioner.identity(2)),
        SwitchTarget([target, target], jnp.asarray(1)),
    ]


@pytest.mark.parametrize("name", KINDS)
def test_a_wrapper_answers_for_what_it_wraps(name):
    target = KINDS[name]
    x = jnp.array([0.3, -1.2])
    for view in wrapped(target):
        assert view.kind is target.kind
        assert view.knowledge == target.knowledge
        assert view.evaluation_cost(2) == (2 if target.num_terms > 1 else 1)
        for key in (None, KEYS[0]):
            ours, theirs = (t.score(x, key=key, sigma=0.7) for t in (view, target))
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)
            pair = zip(
                view.value_and_score(x, key=key),
                target.value_and_score(x, key=key),
                strict=True,
            )
            for a, b in pair:
                np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_one_minibatch_is_a_deterministic_target(name):
    target = KINDS[name]
    x = jnp.array([0.3, -1.2])
    for each in [target, *wrapped(target)]:
        first, second = (each.minibatch(key) for key in KEYS)
        assert (first is second is each) == (target.num_terms == 1)
        here = first.score(x)
        np.testing.assert_array_equal(here, first.score(x, key=KEYS[1]))
        np.testing.assert_array_equal(here, each.score(x, key=KEYS[0]))
        assert first.minibatch(KEYS[1]) is first
        assert first.evaluation_cost(2) == 1


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_score_of_a_minibatch_is_the_gradient_of_its_density(centred, weighted):
    target = KINDS["minibatch"]
    x, at = jnp.array([0.3, -1.2]), jnp.array([0.1, 0.2])
    if weighted:
        target = target.with_importance_sampling(jnp.arange(7.0))
    if centred:
        target = target.with_control_variate(at)
    one = target.minibatch(KEYS[0])
    np.testing.assert_allclose(jax.grad(one.log_density)(x), one.score(x), rtol=1e-5)

    def change(key):
        one = target.minibatch(key)
        return one.log_density(x) - one.log_density(at)

    changes = np.asarray(jax.vmap(change)(jax.random.split(KEYS[1], 4000)))
    exact = float(target.log_density(x) - target.log_density(at))
    error = changes.std() / len(changes) ** 0.5
    assert abs(changes.mean() - exact) < 5 * error + 1e-4


@pytest.mark.parametrize("name", KINDS)
def test_the_surrogate_has_the_score_as_its_gradient(name):
    target, x = KINDS[name], jnp.array([0.3, -1.2])
    value, score = target.value_and_score(x, key=KEYS[0])
    np.testing.assert_allclose(target.surrogate(x, key=KEYS[0]), value, rtol=1e-6)
    gradient = jax.grad(lambda x: target.surrogate(x, key=KEYS[0]))(x)
    np.testing.assert_allclose(gradient, score, rtol=1e-6)
    np.testing.assert_allclose(score, target.score(x, key=KEYS[0]), rtol=1e-6)


def test_what_a_kind_cannot_do_is_said_in_its_own_words():
    density, score, minibatch, noise = (
        KINDS[name] for name in ("density", "score", "minibatch", "noise")
    )
    for fine in (density, minibatch):
        fine.require_density("refine")
        assert fine.why_no_density() is None
    for target, kind in ((score, "ScoreTarget"), (noise, "NoiseConditionalTarget")):
        with pytest.raises(UsageError, match=f"refine needs a .* but a {kind}"):
            target.require_density("refine")
        with pytest.raises(UsageError, match=f"a {kind} has only"):
            target.log_density(jnp.zeros(2))
    density.require_values("weigh")
    for target in (score, minibatch, noise):
        with pytest.raises(UsageError, match="weigh needs the log density at every"):
            target.require_values("weigh")
    assert noise.require_noise_levels("it") == noise.noise_range == (0.5, 2.0)
    with pytest.raises(UsageError, match="KSD adds no noise"):
        noise.require_no_noise("KSD")
    for target in (density, score, minibatch):
        target.require_no_noise("KSD")
        assert target.noise_range == (0.0, 0.0)
        with pytest.raises(UsageError, match="it needs a score that depends on the"):
            target.require_noise_levels("it")


def test_points_are_evaluated_in_blocks_where_there_are_many_data():
    rows = jnp.zeros(2**20)
    target = MinibatchTarget(normal, of_row, rows, 1)
    points = jnp.arange(6.0)[:, None]
    program = eqx.filter_jit(lambda t, x: t.map(t.log_density, x))
    values = program(target, points)
    exact = -0.5 * (1 + 2**20) * np.arange(6.0) ** 2
    np.testing.assert_allclose(values, exact, rtol=1e-4)
    memory = program.lower(target, points).compile().compiled.memory_analysis()
    # All at once would take 6 * 2^20 numbers.
    assert memory.temp_size_in_bytes < 6 * 2**20 * 4


def test_a_subsample_has_fewer_rows():
    target = KINDS["minibatch"].with_control_variate(jnp.zeros(2))
    few = target.subsample(3)
    np.testing.assert_array_equal(few.data, ROWS[::3])
    assert few.num_terms == 3 and few.variance_reduction.centre is None
    assert target.subsample(7) is target
    assert KINDS["density"].subsample(1) is KINDS["density"]


def test_noise_wants_coordinates_that_are_scaled_alike():
    target = KINDS["noise"]
    Preconditioned(target, Preconditioner.affine(jnp.ones(2), 2 * jnp.eye(2)))
    uneven = Preconditioner.affine(jnp.ones(2), jnp.array([[1.0, 0.0], [0.5, 1.0]]))
    Preconditioned(KINDS["score"], uneven)
    with pytest.raises(UsageError, match="can only be scaled all alike"):
        Preconditioned(target, uneven)


def test_targets_print_as_a_line_or_three():
    named = Target(
        lambda p: normal(p["a"]),
        example={"a": jnp.ones(3), "tau": 1.0},
        constraints={"tau": "positive"},
    )
    targets = [named, *KINDS.values(), *(w for t in KINDS.values() for w in wrapped(t))]
    for target in targets:
        assert len(repr(target).splitlines()) <= 3 and len(repr(target)) < 300
    assert "4 coordinates (a[3], tau positive)" in repr(named)
    assert "7 rows" in repr(KINDS["minibatch"])
    # Also when a transformation has taken its arrays out.
    repr(eqx.filter(KINDS["minibatch"], lambda leaf: False))
    repr(StackedTargets.of([KINDS["density"], named.__class__(of_norm, 2)]))


def of_norm(x):
    return -jnp.sum(jnp.abs(x))


# The log density of constrained parameters, and the constraint.
CONSTRAINED = {
    "positive": lambda x: jnp.sum(jnp.log(x) - x),
    "interval(-1, 3)": lambda x: -jnp.sum(x**2),
    "ordered": lambda x: -jnp.sum(x**2),
    "simplex": lambda x: jnp.sum(2 * jnp.log(x)),
}


@pytest.mark.parametrize("text", CONSTRAINED)
def test_every_kind_with_one_log_density_takes_constraints(text):
    density = CONSTRAINED[text]
    rows = jnp.asarray(ROWS)

    def of_row(x, row):
        return -0.1 * jnp.sum((x - row) ** 2)

    def everything(x):
        return density(x) + jnp.sum(jax.vmap(lambda row: of_row(x, row))(rows))

    whole = Target(everything, 3, constraints=text)
    score = ScoreTarget(jax.grad(everything), 3, constraints=text)
    posterior = MinibatchTarget(density, of_row, rows, 3, constraints=text)
    for target in (whole, score, posterior):
        assert target.dim == (2 if text == "simplex" else 3)
        assert examine(KEYS[0], target).passed
    for u in np.random.default_rng(0).normal(size=(4, whole.dim)):
        u = jnp.asarray(u, float)
        # With the log-Jacobian counted once.
        np.testing.assert_allclose(
            posterior.log_density(u), whole.log_density(u), rtol=1e-5
        )
        exact = jax.grad(whole.log_density)(u)
        for target in (whole, score, posterior):
            np.testing.assert_allclose(target.score(u), exact, rtol=1e-4, atol=1e-4)
        keys = jax.random.split(KEYS[0], 2000)
        centred = posterior.with_control_variate(u + 0.1)
        for each in (posterior, centred):
            scores = jax.vmap(lambda key, t=each, u=u: t.score(u, key=key))(keys)
            error = np.asarray(scores).std(axis=0) / len(keys) ** 0.5
            gap = np.abs(np.asarray(scores).mean(axis=0) - exact)
            assert np.all(gap < 5 * error + 1e-3)


def test_a_score_of_a_tree_in_constrained_coordinates():
    def density(p):
        return -0.5 * jnp.sum((p["a"] - p["tau"]) ** 2) - p["tau"]

    shapes = {"a": jnp.zeros(2), "tau": 1.0}
    constraints = {"tau": pf.constraints.greater_than(0.5)}
    exact = Target(density, example=shapes, constraints=constraints)
    score = ScoreTarget(jax.grad(density), example=shapes, constraints=constraints)
    u = jnp.array([0.3, -0.2, 0.7])
    np.testing.assert_allclose(score.score(u), exact.score(u), rtol=1e-6)
    free = ScoreTarget(jax.grad(density), example=shapes)
    np.testing.assert_allclose(
        free.score(u), Target(density, example=shapes).score(u), rtol=1e-6
    )
    assert examine(KEYS[0], score).passed
    vector = ScoreTarget(lambda p: p["a"], example=shapes)
    text = str(examine(KEYS[0], vector).error)
    assert "must return a tree like the parameters, with the shapes {'a': (2,)" in text
    assert "'tau': ()" in text


def test_noise_levels_do_not_go_with_constraints():
    def score(p, sigma):
        return jax.tree.map(lambda a: -a / (1 + sigma**2), p)

    fine = NoiseConditionalTarget(
        score, example={"a": 0.0, "b": jnp.zeros(2)}, sigma_range=(0.1, 1.0)
    )
    x = jnp.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(fine.score(x, sigma=0.5), -x / 1.25, rtol=1e-6)
    assert examine(KEYS[0], fine).passed
    with pytest.raises(UsageError, match="'positive' on 'a': Gaussian noise"):
        NoiseConditionalTarget(
            score,
            example={"a": 0.0},
            constraints={"a": "positive"},
            sigma_range=(0.1, 1.0),
        )


def test_constraints_are_texts_or_objects():
    shapes = {"a": 1.0, "b": jnp.zeros(3), "c": 0.0, "d": 0.0}
    c = pf.constraints
    objects = {"a": c.positive, "b": c.simplex, "c": c.interval(0, 10)}
    texts = {"a": "positive", "b": "simplex", "c": "interval(0, 10)"}
    one, other, alias = (
        Target(lambda p: 0.0, example=shapes, constraints=objects),
        Target(lambda p: 0.0, example=shapes, constraints=texts),
        pf.constrained(lambda p: 0.0, objects, example=shapes),
    )
    assert one.structure == other.structure == alias.structure
    assert Target(normal, 2, constraints=c.less_than(3)).names == ("x[0]", "x[1]")
    array = Target(normal, example=jnp.zeros((2, 2)), constraints="positive")
    assert array.structure.leaves[0].constraint == c.positive
    with pytest.raises(UsageError, match=r"'interval\(3, 1\)' .* with lower < upper"):
        c.interval(3, 1)
    with pytest.raises(UsageError, match="one constraint for all of its numbers"):
        Target(normal, 2, constraints={"a": "positive"})
    with pytest.raises(UsageError, match=r"by name, such as \{'a': 'positive'"):
        Target(lambda p: 0.0, example=shapes, constraints="positive")
    with pytest.raises(UsageError, match="of a parameter cannot be written to a file"):
        Structure.vector(1, ("\ud800",))
    with pytest.raises(UsageError, match="of a parameter cannot be written to a file"):
        Target(lambda p: 0.0, example={"\ud800": 1.0})
    with pytest.raises(UsageError, match=r"names holds 3 names .* has 2 coordinates"):
        Target(normal, 3, constraints="simplex", names=("a", "b", "c"))


def test_a_constraint_that_is_neither_a_text_nor_an_object():
    with pytest.raises(UsageError, match="on 'a' is a float; a constraint is a text"):
        Constraint.of(3.0, "'a'")


class Own(pf.AbstractTarget):
    """A kind of target from outside the package: N(1, I) by its log density."""

    structure: Structure = eqx.field(static=True)
    sample_fn: None = None

    @property
    def kind(self):
        return Own

    @property
    def knowledge(self):
        return Knowledge()

    def minibatch(self, key):
        return self

    def subsample(self, n):
        return self

    def reduce_variance(self, found):
        return self

    def user_functions(self):
        density = self._log_density
        return (UserFunction("density", density, density, SCALAR, density),)

    def _log_density(self, x):
        return normal(x - 1)

    def _score(self, x, key, sigma):
        return 1 - x


def test_a_kind_from_outside():
    target = Own(Structure.vector(2))
    assert examine(KEYS[0], target).passed
    found = initialise(KEYS[0], target, particles=64)
    assert (
        np.abs(jax.vmap(found.preconditioner.to_target)(found.particles) - 1).max() < 6
    )
    both = StackedTargets.of([target, KINDS["density"]]).first
    assert isinstance(both, SwitchTarget) and both.kind is Own

    def from_the_mode(target, key, particles):
        shifted = Preconditioner.affine(jnp.ones(2), jnp.eye(2))
        u = jax.random.normal(key, (particles, 2))
        return Initialisation(shifted, u, VarianceReduction(), jnp.asarray(0))

    register_initialisation(Own, from_the_mode)
    found = initialise(KEYS[0], target, particles=64)
    np.testing.assert_array_equal(found.preconditioner.centre, 1.0)
