"""Groups of symmetry: what they do to points, one copy, samplers, evidence."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

import pushforward as pf
from pushforward.errors import DensityError, FileError, UsageError
from pushforward.mcmc.copies import divide
from pushforward.networks import AffineMap, MixtureMap
from pushforward.targets.one_copy import Copy, OneCopy
from pushforward.targets.symmetries import (
    from_json,
    particles,
    permutations,
    rotations,
    signs,
    translations,
)

KEY = jax.random.key(11)


def structure(example, constraints=None):
    return pf.Target(lambda p: 0.0, example=example, constraints=constraints).structure


LABELS = structure(
    {"mu": jnp.zeros((3, 2)), "tau": jnp.ones(3), "w": jnp.ones(3) / 3},
    {"tau": "positive", "w": "simplex"},
)
HIDDEN = structure(
    {"mu": jnp.zeros(3), "step": jnp.ones((3, 3)) / 3}, {"step": "simplex"}
)
FACTORS = structure({"factor": jnp.zeros((3, 2)), "loading": jnp.zeros((4, 2))})
CLUSTER = structure(jnp.zeros((4, 2)))
SPACE = structure(jnp.zeros((3, 3)))
PLAIN = structure(jnp.zeros(6))

# Each with its parameters, how many elements it has, and how many are left by canonical
# coordinates.
GROUPS = {
    "labels": (permutations("mu", "tau", "w"), LABELS, 6, 6),
    "hidden states": (
        permutations("mu", "step", axis={"step": (0, 1)}),
        HIDDEN,
        6,
        6,
    ),
    "factors": (signs("factor", "loading", axis=1), FACTORS, 4, 4),
    "signed factors": (
        signs("factor", "loading", axis=1)
        * permutations("factor", "loading", axis={"factor": 1, "loading": 1}),
        FACTORS,
        8,
        8,
    ),
    "mirror": (signs(), PLAIN, 2, 2),
    "blocks": (permutations(blocks=3), PLAIN, 6, 6),
    "turns": (rotations(dim=2), PLAIN, None, 1),
    "turns in space": (rotations(dim=3, reflections=True), PLAIN, None, 2),
    "one vector": (rotations(), structure(jnp.zeros(3)), None, 1),
    "cluster": (particles(), CLUSTER, None, 24),
    "cluster with mirrors": (particles(reflections=True), CLUSTER, None, 48),
    "cluster in space": (particles(), SPACE, None, 6),
}
groups = pytest.mark.parametrize("name", GROUPS)


def bound(name):
    group, parameters, *_ = GROUPS[name]
    return group.bind(group.constrain(parameters))


def a_point(action, seed=0):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.normal(size=action.structure.size), float)


@pytest.mark.usefixtures("x64")
@groups
def test_an_element_is_linear_and_keeps_volumes(name):
    action = bound(name)
    x, y = a_point(action), a_point(action, 1)
    element = action.random(KEY)
    matrix = jax.jacfwd(lambda u: action.act(element, u))(x)
    moved = action.act(element, y)
    np.testing.assert_allclose(moved, matrix @ y, atol=1e-12)
    assert abs(float(jnp.linalg.det(matrix))) == pytest.approx(1, abs=1e-10)


@groups
def test_sizes_and_json(name):
    group, _, size, left = GROUPS[name]
    action = bound(name)
    assert (action.size, action.finite_size) == (size, left)
    again = from_json(group.to_json()).bind(action.structure)
    assert again == action
    assert hash(again) == hash(action)


@pytest.mark.usefixtures("x64")
@groups
def test_random_elements_are_uniform_over_the_group(name):
    """Moved by an element h first, the mean of an orbit does not change."""
    action = bound(name)
    x = a_point(action)
    keys = jax.random.split(KEY, 4000)

    def spread(u):
        moved = jax.vmap(lambda k: action.act(action.random(k), u))(keys)
        third = moved[:, 0] ** 2 * moved[:, -1]
        return jnp.concatenate([moved, moved**2, third[:, None]], axis=1)

    once = spread(x)
    other = spread(action.act(action.random(jax.random.key(5)), x))
    error = np.std(once, axis=0) * math.sqrt(2 / 4000) + 1e-9
    gap = np.abs(np.mean(once, axis=0) - np.mean(other, axis=0))
    # Two samples of one law, though not independent ones.
    assert np.max(gap / error) < 5


def test_labels_move_together_and_keep_their_constraints():
    action = bound("labels")
    u = a_point(action)
    order = jnp.array([2, 0, 1], jnp.int32)
    before = action.structure.unflatten(u)
    after = action.structure.unflatten(action.act((order,), u))
    for name in ("mu", "tau", "w"):
        np.testing.assert_allclose(after[name], before[name][order], rtol=1e-5)


def test_hidden_states_permute_both_axes():
    action = bound("hidden states")
    u = a_point(action)
    order = jnp.array([2, 0, 1], jnp.int32)
    before = action.structure.unflatten(u)["step"]
    after = action.structure.unflatten(action.act((order,), u))["step"]
    np.testing.assert_allclose(after, before[order][:, order], rtol=1e-5)


def test_particles_are_centred():
    action = bound("cluster in space")
    x = action.structure.unflatten(a_point(action))
    assert x.shape == (3, 3)
    np.testing.assert_allclose(x.mean(0), 0, atol=1e-6)
    moved = action.structure.unflatten(action.move_randomly(KEY, a_point(action)))
    # Distances stay, in another order.
    pairs = [
        sorted(np.linalg.norm(p[i] - p[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
        for p in (x, moved)
    ]
    np.testing.assert_allclose(*pairs, rtol=1e-5)


ROTATED = [name for name in GROUPS if GROUPS[name][2] is None]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ROTATED)
class TestCanonicalCoordinates:
    def test_they_are_those_of_every_rotated_point(self, name):
        action = bound(name)
        y = a_point(action)[: action.canonical_dim]
        x = action.section(y)
        turn = dataclasses.replace(action.rotations, reflections=False)
        turned = action.lower(turn.act(turn.random(KEY), action.lift(x)))
        np.testing.assert_allclose(action.canonical(x), y, atol=1e-9)
        np.testing.assert_allclose(action.canonical(turned), y, atol=1e-9)

    def test_volumes(self, name):
        """`x = R section(y)` has the Jacobian that `log_volume` says."""
        action = bound(name)
        y = a_point(action, 2)[: action.canonical_dim]
        d = action.rotations.dim
        planes = list(itertools.combinations(range(d), 2))
        # One point in space leaves the turns about itself.
        planes = planes[: action.structure.size - len(y)]

        def place(y, angles):
            turn = jnp.eye(d)
            for (i, j), angle in zip(planes, angles, strict=True):
                turn = turn.at[i, j].add(-angle).at[j, i].add(angle)
            return action.lower(action.rotations.act(turn, action.lift(action.section(y))))

        angles = jnp.zeros(len(planes))
        jacobian = jnp.concatenate(
            jax.jacfwd(place, argnums=(0, 1))(y, angles), axis=1
        )
        volume = {1: 2 * np.pi, 2: 4 * np.pi, 3: 8 * np.pi**2}[len(planes)]
        wanted = np.linalg.slogdet(jacobian)[1] + np.log(volume)
        assert float(action.log_volume(y)) == pytest.approx(wanted, abs=1e-9)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "name", ["labels", "factors", "signed factors", "blocks", "cluster"]
)
def test_the_shares_of_all_copies_add_up_to_one(name):
    action = bound(name)
    rng = np.random.default_rng(4)
    axes = jnp.asarray(0.7 * rng.normal(size=(action.structure.size,) * 2))
    copy = Copy.around(action, a_point(action, 8), axes)
    tables = [each.elements() for each in action.bound]
    u = a_point(action, 9)
    rows = itertools.product(*(range(len(t)) for t in tables))
    elements = [
        jnp.asarray(t[list(i)])
        for t, i in zip(tables, zip(*rows, strict=True), strict=True)
    ]
    shares = jax.jit(
        jax.vmap(lambda *element: jnp.exp(copy.log_share(action.act(element, u))))
    )(*elements)
    assert copy.size == len(shares)
    assert float(jnp.sum(shares)) == pytest.approx(1, abs=1e-9)
    assert float(jnp.max(shares)) < 1


@pytest.mark.parametrize("name", ["factors", "signed factors", "cluster"])
def test_points_are_brought_by_their_shares(name):
    action = bound(name)
    axes = 0.8 * jnp.eye(action.structure.size)
    copy = Copy.around(action, a_point(action, 8), axes)
    u = a_point(action, 9)
    keys = jax.random.split(KEY, 2000)
    brought = np.asarray(jax.jit(jax.vmap(lambda k: copy.bring(k, u)))(keys))
    places, counts = np.unique(np.round(brought, 3), axis=0, return_counts=True)
    points = jnp.asarray(places, float)
    shares = np.float64(jnp.exp(jax.jit(jax.vmap(copy.log_share))(points)))
    # All that have a share worth a few draws were seen.
    assert shares.sum() > 0.97
    shares /= shares.sum()
    rare = len(keys) * shares < 5
    shares, counts = (
        np.append(a[~rare], a[rare].sum() + 1e-300) for a in (shares, counts)
    )
    assert stats.chisquare(counts, len(keys) * shares).pvalue > 1e-3
