"""Groups of symmetry: what they do to points, one copy, samplers, evidence."""

import dataclasses
import itertools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

import pushforward as pf
from pushforward.errors import DensityError, FileError, UsageError
from pushforward.mcmc.copies import divide
from pushforward.networks import AffineMap, MixtureMap
from pushforward.targets.examine import examine
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


# What is made of the others in few steps.
PLAINER = ("mirror", "blocks", "factors", "one vector", "cluster")
some_groups = pytest.mark.parametrize("name", [n for n in GROUPS if n not in PLAINER])


@pytest.mark.usefixtures("x64")
@some_groups
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
@pytest.mark.parametrize(
    "name", ["hidden states", "signed factors", "turns", "cluster in space"]
)
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


ROTATED = ["turns", "turns in space", "one vector", "cluster"]


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
            return action.lower(
                action.rotations.act(turn, action.lift(action.section(y)))
            )

        angles = jnp.zeros(len(planes))
        jacobian = jnp.concatenate(jax.jacfwd(place, argnums=(0, 1))(y, angles), axis=1)
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


# A density over three labels: their means in any order.
MEANS = jnp.array([-3.0, 0.0, 3.0])
ORDERS = jnp.asarray(np.array(list(itertools.permutations(range(3)))))


def of_labels(x):
    """Normalised: the mean of the normals around all orders of `MEANS`."""
    squares = jnp.sum((x[None] - MEANS[ORDERS]) ** 2, axis=1) / 0.36
    constant = 1.5 * math.log(2 * math.pi * 0.36) + math.log(6)
    return jax.nn.logsumexp(-0.5 * squares) - constant


def draw_labels(key, n):
    order_key, key = jax.random.split(key)
    centres = MEANS[ORDERS[jax.random.randint(order_key, (n,), 0, 6)]]
    return centres + 0.6 * jax.random.normal(key, (n, 3))


def labels(**options):
    return pf.Target(of_labels, dim=3, symmetry=permutations(), **options)


class TestSampler:
    def of_labels(self):
        network = jax.tree.map(lambda a: a + 0.3, AffineMap(3))
        return pf.Sampler.from_network(network, target=labels())

    def test_log_prob_is_the_average_over_the_group(self):
        sampler = self.of_labels()
        alone = pf.Sampler(sampler.network, sampler.preconditioner, sampler.structure)
        x = jax.random.normal(KEY, (5, 3))
        copies = jnp.stack([alone.log_prob(x[:, order]) for order in ORDERS])
        wanted = jax.nn.logsumexp(copies, axis=0) - math.log(6)
        np.testing.assert_allclose(sampler.log_prob(x), wanted, rtol=1e-5)

    def test_draws_come_in_every_order(self):
        sampler = self.of_labels()
        alone = pf.Sampler(sampler.network, sampler.preconditioner, sampler.structure)
        ours = np.asarray(sampler.sample(KEY, 3000))
        np.testing.assert_allclose(
            np.sort(ours, axis=1), np.sort(alone.sample(KEY, 3000), axis=1), rtol=1e-5
        )
        # A key of its own: the order does not follow from what is moved.
        counts = np.unique(
            np.argsort(np.argsort(ours))
            - np.argsort(np.argsort(alone.sample(KEY, 3000))),
            axis=0,
            return_counts=True,
        )
        assert len(counts[0]) > 6

    def test_draws_and_densities_fit_together(self):
        sampler = self.of_labels()
        x, log_p = sampler.sample_and_log_prob(KEY, (2, 5))
        np.testing.assert_allclose(log_p, sampler.log_prob(x), rtol=1e-5)
        np.testing.assert_allclose(x, sampler.sample(KEY, (2, 5)), rtol=1e-5)
        np.testing.assert_allclose(
            sampler.sample(KEY, 4), x.reshape(10, 3)[:4], rtol=1e-5
        )
        under_jit = jax.jit(sampler.log_prob)(x[0])
        np.testing.assert_allclose(under_jit, log_p[0], rtol=1e-5)
        slope = jax.vmap(jax.grad(sampler.log_prob))(x[0])
        assert np.isfinite(slope).all()
        # The score moves with the point.
        turned = jax.vmap(jax.grad(sampler.log_prob))(x[0][:, ::-1])
        np.testing.assert_allclose(turned[:, ::-1], slope, rtol=1e-3, atol=1e-5)

    def test_files(self, tmp_path):
        sampler = self.of_labels()
        again = pf.load(sampler.save(tmp_path / "labels.pf"))
        assert again.symmetry == sampler.symmetry
        np.testing.assert_array_equal(again.sample(KEY, 7), sampler.sample(KEY, 7))
        x = jnp.arange(3.0)
        assert float(again.log_prob(x)) == float(sampler.log_prob(x))
        assert "permutations()" in repr(again)
        sampler.stream(KEY, 20, tmp_path / "draws.npy")
        np.testing.assert_allclose(
            np.load(tmp_path / "draws.npy"), sampler.sample(KEY, 20), rtol=1e-5
        )

    @pytest.mark.usefixtures("x64")
    def test_of_a_rotated_point_integrates_to_one(self):
        target = pf.Target(
            lambda x: -0.5 * jnp.sum(x**2), dim=2, symmetry=rotations(reflections=True)
        )
        network = AffineMap(1)
        sampler = pf.Sampler.from_network(network, target=target)
        assert sampler.has_density
        rule = np.linspace(-8, 8, 801)
        x = jnp.stack(jnp.meshgrid(*2 * [jnp.asarray(np.exp(rule))]), -1)
        log_p = np.float64(sampler.log_prob(x.reshape(-1, 2))).reshape(801, 801)
        jacobian = rule[:, None] + rule[None]
        quarter = np.exp(log_p + jacobian).sum() * (rule[1] - rule[0]) ** 2
        assert 4 * quarter == pytest.approx(1, abs=2e-3)

    def test_of_a_cluster(self, tmp_path):
        target = pf.Target(
            lambda x: -0.5 * jnp.sum(x**2),
            example=jnp.zeros((4, 2)),
            symmetry=particles(reflections=True),
        )
        network = MixtureMap(6, 8, 1, 3, 2, key=KEY)
        sampler = pf.Sampler.from_network(network, target=target)
        x, log_p = sampler.sample_and_log_prob(KEY, 3)
        np.testing.assert_allclose(x.mean(axis=1), 0, atol=1e-5)
        # Any order, any rotation, mirrored.
        turned = x[:, ::-1] @ jnp.array([[0.6, 0.8], [0.8, -0.6]])
        np.testing.assert_allclose(sampler.log_prob(turned), log_p, rtol=1e-3)
        again = pf.load(sampler.save(tmp_path / "cluster.pf"))
        np.testing.assert_array_equal(again.sample(KEY, 3), x)

    def test_too_large_a_group_has_no_density(self):
        target = pf.Target(
            lambda x: -0.5 * jnp.sum(x**2), dim=8, symmetry=permutations()
        )
        sampler = pf.Sampler.from_network(AffineMap(8), target=target)
        assert sampler.sample(KEY, 3).shape == (3, 8)
        assert not sampler.has_density
        with pytest.raises(UsageError, match=r"4.03e\+04 elements are too many"):
            sampler.log_prob(jnp.zeros(8))
        with pytest.raises(UsageError, match="too many"):
            pf.weigh(KEY, target, sampler)

    def test_a_damaged_file_is_refused(self):
        with pytest.raises(FileError, match="symmetry is damaged"):
            from_json([{"kind": "shears", "names": []}])


@pytest.mark.usefixtures("x64")
def test_one_copy_has_the_normaliser_of_all():
    def log_density(x):
        squares = (x - jnp.array([-1.0, 0.7])) ** 2
        other = (x - jnp.array([0.7, -1.0])) ** 2
        return jnp.logaddexp(-jnp.sum(squares), -jnp.sum(other))

    target = pf.Target(log_density, dim=2, symmetry=permutations())
    copy = Copy.around(target.symmetry, jnp.array([-1.0, 0.7]), 0.5 * jnp.eye(2))
    one = OneCopy(target, copy)
    grid = np.linspace(-7, 7, 401)
    points = jnp.stack(jnp.meshgrid(jnp.asarray(grid), jnp.asarray(grid)), -1)

    @jax.jit
    def mass(points):
        return jnp.sum(jnp.exp(jax.vmap(one.log_density)(points)))

    found = mass(points.reshape(-1, 2)) * (grid[1] - grid[0]) ** 2
    assert float(found) == pytest.approx(2 * math.pi, rel=1e-6)
    x = jnp.array([0.3, -0.4])
    np.testing.assert_allclose(one.score(x), jax.grad(one.log_density)(x), rtol=1e-9)


@pytest.mark.usefixtures("x64")
def test_one_copy_of_a_rotated_density_has_its_normaliser():
    """A normal in the plane: over log r, `2 pi r^2 exp(-r^2 / 2)` has the mass 2 pi."""
    target = pf.Target(lambda x: -0.5 * jnp.sum(x**2), dim=2, symmetry=rotations())
    one = OneCopy(target, Copy.blank(target.symmetry))
    assert one.dim == 1
    density = jax.jit(lambda y: jnp.exp(one.log_density(y[None])))
    grid = jnp.linspace(-12.0, 4.0, 4001)
    mass = integrate.trapezoid(jax.vmap(density)(grid), grid)
    assert mass == pytest.approx(2 * math.pi, rel=1e-6)


class TestDoor:
    def test_what_is_symmetric_comes_in(self):
        seen = examine(KEY, labels())
        assert seen.passed
        assert "does not change under permutations()" in str(seen)

    def test_a_wrong_group_is_refused(self):
        target = pf.Target(
            lambda p: -jnp.sum((p["a"] - p["b"]) ** 2) - jnp.sum(p["a"] ** 2),
            example={"a": jnp.zeros(3), "b": jnp.zeros(3)},
            symmetry=permutations("a"),
        )
        with pytest.raises(DensityError) as error:
            pf.fit(KEY, target, progress=False)
        sentence = str(error.value)
        assert "changes under the symmetry permutations('a')" in sentence
        assert "it differs by" in sentence
        assert "a[0] = " in sentence

    @pytest.mark.parametrize("right", [True, False])
    def test_of_a_score(self, right):
        weights = jnp.ones(4) if right else jnp.arange(1.0, 5.0)
        target = pf.ScoreTarget(lambda x: -weights * x, dim=4, symmetry=permutations())
        assert examine(KEY, target).passed == right

    def test_large_terms_are_rounded_and_not_refused(self):
        def cluster(x):
            apart = x[:, None] - x[None]
            squares = jnp.sum(apart**2, -1) + jnp.eye(len(x))
            inverse = jnp.where(jnp.eye(len(x)) == 1, 0.0, 1 / squares**3)
            return -jnp.sum(2 * (inverse**2 - inverse)) - 0.5 * jnp.sum(x**2)

        example = jnp.zeros((7, 3))
        target = pf.Target(cluster, example=example, symmetry=particles())
        names = {check.name: check for check in examine(KEY, target).checks}
        assert names["symmetry"].ok


BAD = {
    "no group": (lambda: dict(symmetry="labels", dim=3), "must be a group"),
    "an unknown name": (
        lambda: dict(symmetry=permutations("m"), example={"mu": jnp.zeros(3)}),
        "no parameter",
    ),
    "no names": (
        lambda: dict(symmetry=permutations(), example={"a": 0.0, "b": 0.0}),
        "must name the parameters",
    ),
    "lengths": (
        lambda: dict(
            symmetry=permutations("a", "b"),
            example={"a": jnp.zeros(3), "b": jnp.zeros(2)},
        ),
        "as long",
    ),
    "ordered": (
        lambda: dict(symmetry=permutations(), dim=3, constraints="ordered"),
        "one or the other",
    ),
    "a positive sign": (
        lambda: dict(symmetry=signs(), dim=3, constraints="positive"),
        "changes the sign",
    ),
    "four dimensions": (lambda: dict(symmetry=rotations(), dim=4), "dim=2 or dim=3"),
    "a vector of points": (lambda: dict(symmetry=translations(), dim=4), "instead of"),
    "twice": (lambda: dict(symmetry=signs() * signs(), dim=4), "twice"),
    "blocks": (lambda: dict(symmetry=permutations(blocks=3), dim=4), "equal blocks"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_group_that_does_not_fit_gets_a_sentence(name):
    make, sentence = BAD[name]
    with pytest.raises(UsageError, match=sentence):
        pf.Target(lambda p: jnp.zeros(()), **make())


def test_the_copy_is_found_around_a_maximum():
    one, spent = eqx.filter_jit(divide)(KEY, labels())
    np.testing.assert_allclose(np.sort(one.copy.template[0]), MEANS, atol=0.1)
    np.testing.assert_allclose(one.copy.variance[0], 0.36, rtol=0.3)
    assert spent > 0


@pytest.mark.slow
def test_a_fit_learns_one_copy_and_weighs_all():
    target = labels()
    method = pf.methods.Gaussian(whiten=False, averaging=0.99)
    fit = pf.fit(KEY, target, method, steps=1500, progress=False)
    assert "one copy of 6 under permutations() (6 elements)" in str(fit)
    x = fit.sampler.sample(KEY, 6000)
    orders = np.unique(np.argsort(np.asarray(x), axis=1), axis=0, return_counts=True)[1]
    assert len(orders) == 6
    assert stats.chisquare(orders).pvalue > 1e-3
    weighed = pf.weigh(jax.random.key(1), target, fit.sampler, 2000)
    # The density is normalised.
    assert abs(weighed.log_normaliser) < 4 * weighed.log_normaliser_se + 1e-3
    assert weighed.ess > 1800


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["density", "score"])
def test_two_networks_learn_one_copy_in_canonical_coordinates(kind, tmp_path):
    def log_density(x):
        return -jnp.sum(x**2)

    options = {"example": jnp.zeros((3, 2)), "symmetry": particles()}
    target = pf.Target(log_density, **options)
    if kind == "score":
        target = pf.ScoreTarget(jax.grad(log_density), **options)
    method = pf.methods.DFT(
        network=pf.networks.residual(8, 1), batch_size=8, particles=64
    )
    out = tmp_path / "run"
    fit = pf.fit(KEY, target, method, steps=6, progress=False, out=out)
    # Of four coordinates of centred points one is the rotation.
    assert (fit.sampler.dim, fit.sampler.network.out_size) == (4, 3)
    x = fit.sampler.sample(KEY, 5)
    np.testing.assert_allclose(x.mean(axis=1), 0, atol=1e-5)
    np.testing.assert_array_equal(pf.load(out).sample(KEY, 5), x)
    # What was found of the copy is in the checkpoint.
    longer = pf.fit(KEY, target, method, steps=8, progress=False, out=out, resume=True)
    whole = pf.fit(KEY, target, method, steps=8, progress=False)
    assert longer.steps == whole.steps == 8
    plain = pf.Target(log_density, example=jnp.zeros((3, 2)), constraints="centred")
    if kind == "density":
        with pytest.raises(FileError, match="another symmetry"):
            pf.fit(KEY, plain, method, progress=False, out=out, resume=True)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [False, True])
def test_check_looks_at_one_copy(wrong):
    target = labels(sample=draw_labels)
    draws = draw_labels(KEY, 2000)
    # Of one order alone: the same draws modulo the group.
    draws = jnp.sort(draws, axis=1)
    if wrong:
        draws = draws.at[:, 0].add(0.3)
    verdict = pf.check(jax.random.key(4), target, draws)
    assert verdict.outcome == ("failed" if wrong else "passed")


@pytest.mark.slow
def test_exploration_lists_the_modes_of_one_copy():
    found = pf.explore(KEY, labels(), max_evaluations=1)
    assert len(found.mode_weights) == 1
    assert abs(found.log_normaliser) < 0.2
    orders = np.argsort(np.asarray(found.particles), axis=1)
    assert len(np.unique(orders, axis=0)) == 6
