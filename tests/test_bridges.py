"""Models of NumPyro become targets; draws go to ArviZ."""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions.transforms import OrderedTransform
from numpyro.infer import Predictive
from numpyro.infer.reparam import LocScaleReparam

import pushforward as pf
from pushforward.bridges import from_numpyro, to_arviz, to_numpyro, to_pandas, to_polars
from pushforward.errors import FileError, MissingDependencyError, UsageError
from pushforward.targets.preconditioner import Preconditioner

pytestmark = [
    pytest.mark.once,
    # Many of these models are priors, and meant to be.
    pytest.mark.filterwarnings("ignore:No site of the model is observed"),
]

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


@pytest.fixture(autouse=True)
def _as_users_have_it():
    """NumPyro's own arithmetic, in models, mixes types and ranks."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def schools(effects, errors):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("schools", len(errors)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, errors), obs=effects)


def one(make):
    """A model of one site; its distribution is made when the model is run."""
    return lambda: numpyro.sample("x", make())


def ordered(n):
    base = dist.Normal(0, 1).expand([n]).to_event(1)
    return dist.TransformedDistribution(base, OrderedTransform())


def test_a_hierarchical_model_has_the_score_of_the_built_in_one():
    ours = pf.targets.get("eight_schools_centred")
    theirs = from_numpyro(schools, EFFECTS, ERRORS)
    assert theirs.dim == 10
    keys = jax.random.split(jax.random.key(0), 5)
    for key in keys:
        draw = theirs.structure.unflatten(jax.random.normal(key, (10,)))
        scores = []
        for target in (ours, theirs):
            # The same point, in each target's own order of coordinates.
            x = target.structure.flatten(
                {leaf.name: draw[leaf.name] for leaf in target.structure.leaves}
            )
            scores.append(dict(zip(target.names, target.score(x), strict=True)))
        first, second = scores
        assert set(first) == set(second)
        for name, value in first.items():
            np.testing.assert_allclose(second[name], value, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "constraint"),
    [
        (lambda: dist.Normal(1, 2), "real"),
        (lambda: dist.StudentT(5, 0, 1), "real"),
        (lambda: dist.HalfNormal(2), "positive"),
        (lambda: dist.LogNormal(0, 1), "positive"),
        (lambda: dist.Gamma(2, 3), "positive"),
        (lambda: dist.Beta(2, 3), "unit_interval"),
        (lambda: dist.Uniform(-1, 3), "interval(-1, 3)"),
        (lambda: dist.TruncatedNormal(0, 1, low=-1.0), "greater_than(-1)"),
        (lambda: dist.TruncatedNormal(0, 1, high=2.0), "less_than(2)"),
        (lambda: dist.Dirichlet(jnp.asarray([2.0, 3.0])), "simplex"),
        (lambda: dist.LKJCholesky(2, 1.5), "cholesky_correlation"),
        (lambda: dist.LKJ(2, 1.5), "correlation"),
        (lambda: dist.WishartCholesky(3.0, jnp.eye(1)), "cholesky_covariance"),
        (lambda: dist.Wishart(3.0, jnp.eye(1)), "covariance"),
        (lambda: dist.ProjectedNormal(jnp.asarray([1.0, 0.5])), "unit_vector"),
        (lambda: dist.ZeroSumNormal(1.0, (2,)), "zero_sum"),
        (
            lambda: dist.VonMises(0.5, 2.0),
            "circular",
        ),
    ],
)
def test_a_prior_integrates_to_one_in_our_coordinates(make, constraint):
    """Right only if the constraint and its Jacobian are those of the support."""
    target = from_numpyro(one(make))
    (leaf,) = target.structure.leaves
    assert (leaf.name, str(leaf.constraint), target.dim) == ("x", constraint, 1)
    # The tails beyond are below 1e-4 for all of them (Student's t: 2e-5).
    u = jnp.linspace(-40.0, 40.0, 20_001)[:, None]
    values = jnp.exp(jax.vmap(target.log_density)(u))
    assert float(jnp.sum(values) * 80 / 20_000) == pytest.approx(1.0, abs=1e-3)


def test_so_does_one_of_an_ordered_vector():
    target = from_numpyro(one(lambda: ordered(2)))
    assert [str(leaf.constraint) for leaf in target.structure.leaves] == ["ordered"]
    line = jnp.linspace(-8.0, 8.0, 401)
    grid = jnp.stack(jnp.meshgrid(line, line), axis=-1).reshape(-1, 2)
    values = jnp.exp(jax.vmap(target.log_density)(grid))
    assert float(jnp.sum(values) * (16 / 400) ** 2) == pytest.approx(1.0, abs=1e-3)


def test_the_data_are_no_part_of_the_program():
    first, second = (
        from_numpyro(schools, EFFECTS + shift, errors=ERRORS) for shift in (0.0, 1.0)
    )
    traces = []

    @eqx.filter_jit
    def value(target, x):
        traces.append(1)
        return target.log_density(x)

    x = jnp.full(10, 0.5)
    assert value(first, x) != value(second, x) and len(traces) == 1


def test_a_model_that_must_see_its_data():
    def model(groups, y):
        effects = numpyro.sample("a", dist.Normal(0, 1).expand([int(groups.max()) + 1]))
        numpyro.sample("y", dist.Normal(effects[groups], 1), obs=y)

    groups, y = np.array([0, 1, 2, 1]), np.array([1.0, 2.0, 3.0, 4.0])
    target = from_numpyro(model, groups, y)
    # The posterior is normal: precision 1 + n_i, mean sum_i / (1 + n_i).
    mean = jnp.asarray([1 / 2, 6 / 3, 3 / 2])
    np.testing.assert_allclose(target.score(mean), jnp.zeros(3), atol=1e-5)
    slope = jax.jacfwd(target.score)(mean)
    np.testing.assert_allclose(slope, -jnp.diag(jnp.asarray([2.0, 3, 2])), atol=1e-5)


def test_handlers_are_a_part_of_the_model():
    config = {"theta": LocScaleReparam(0)}
    target = from_numpyro(
        numpyro.handlers.reparam(schools, config=config), EFFECTS, ERRORS
    )
    names = {leaf.name for leaf in target.structure.leaves}
    assert names == {"mu", "tau", "theta_decentered"}


def test_draws_are_sites_that_predictive_takes(tmp_path):
    target = from_numpyro(schools, EFFECTS, ERRORS)
    method = pf.methods.Gaussian(steps=5, batch_size=8, particles=64)
    fit = pf.fit(jax.random.key(0), target, method, progress=False)
    path = fit.sampler.save(tmp_path / "schools.pf")
    # A file knows the constraints by name: it needs neither the model nor NumPyro.
    draws = pf.load(path).sample(jax.random.key(1), 7)
    assert {k: v.shape for k, v in draws.items()} == {
        "mu": (7,), "tau": (7,), "theta": (7, 8),
    }  # fmt: skip
    assert (draws["tau"] > 0).all()
    seen = Predictive(schools, draws)(jax.random.key(2), None, ERRORS)
    assert seen["y"].shape == (7, 8)


def broken():
    raise RuntimeError("no such table")


def with_a_parameter():
    numpyro.sample("x", dist.Normal(numpyro.param("a", 1.0), 1))


def subsampled():
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    with numpyro.plate("rows", 100, subsample_size=10):
        numpyro.sample("y", dist.Normal(0, scale), obs=jnp.zeros(10))


def parts_of_two():
    with numpyro.plate("rows", 100, subsample_size=10):
        numpyro.sample("y", dist.Normal(0, 1), obs=jnp.zeros(10))
    with numpyro.plate("columns", 100, subsample_size=10):
        numpyro.sample("x", dist.Normal(0, 1))


def each_its_own():
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("rows", 100, subsample_size=10):
        numpyro.sample("z", dist.Normal(mean, 1))


def bounded_by_another():
    top = numpyro.sample("top", dist.HalfNormal(1))
    numpyro.sample("x", dist.Uniform(0, top))


def test_bounds_that_depend_on_another_site(tmp_path):
    target = from_numpyro(bounded_by_another)
    u = jnp.linspace(-25.0, 15.0, 401)
    points = jnp.stack(jnp.meshgrid(u, u), axis=-1).reshape(-1, 2)
    values = jnp.exp(jax.vmap(target.log_density)(points))
    # The prior of both is normalised, in our coordinates too.
    assert float(jnp.sum(values)) * 0.1**2 == pytest.approx(1.0, abs=2e-3)
    draw = target.structure.unflatten(jnp.array([0.3, -0.7]))
    assert 0 < draw["x"] < draw["top"]
    np.testing.assert_allclose(target.structure.flatten(draw), [0.3, -0.7], rtol=1e-5)
    assert target.structure.contains(draw)
    assert not target.structure.contains({"top": 1.0, "x": 1.5})
    sampler = pf.Sampler.from_network(pf.networks.AffineMap(2), target=target)
    draws, log_p = sampler.sample_and_log_prob(jax.random.key(0), 5)
    np.testing.assert_allclose(sampler.log_prob(draws), log_p, rtol=1e-4, atol=1e-4)
    path = sampler.save(tmp_path / "moving.pf")
    with pytest.raises(FileError, match="like=target"):
        pf.load(path)
    again = pf.load(path, like=target).sample(jax.random.key(0), 5)
    np.testing.assert_allclose(again["x"], draws["x"], rtol=1e-6)


def test_a_support_without_a_name_is_placed_by_numpyro():
    ball = dist.constraints.l1_ball
    target = from_numpyro(one(lambda: dist.ImproperUniform(ball, (), (2,))))
    u = jnp.linspace(-12.0, 12.0, 481)
    points = jnp.stack(jnp.meshgrid(u, u), axis=-1).reshape(-1, 2)
    values = jnp.exp(jax.vmap(target.log_density)(points))
    # The area of the ball.
    assert float(jnp.sum(values)) * 0.05**2 == pytest.approx(2.0, rel=2e-3)
    assert "L1Ball" in str(target)


def test_bounds_of_each_element():
    low, high = jnp.array([0.0, -2.0, 5.0]), jnp.array([1.0, 2.0, 9.0])
    target = from_numpyro(one(lambda: dist.Uniform(low, high)))
    (leaf,) = target.structure.leaves
    assert str(leaf.constraint) == "interval([0, -2, 5], [1, 2, 9])"
    x = target.structure.unflatten(jnp.zeros(3))["x"]
    np.testing.assert_allclose(x, (low + high) / 2)


def regression(x, y, take):
    slope = numpyro.sample("slope", dist.Normal(0, 2))
    noise = numpyro.sample("noise", dist.HalfNormal(1))
    numpyro.factor("also", -0.1 * slope**2)
    with numpyro.plate("rows", 60, subsample_size=None if take == "all" else 6) as i:
        if take == "indices":
            x, y = x[i], y[i]
        elif take == "subsample":
            x, y = (numpyro.subsample(a, event_dim=0) for a in (x, y))
        numpyro.sample("y", dist.Normal(slope * x, noise), obs=y)


@pytest.mark.parametrize("take", ["indices", "subsample"])
def test_a_plate_that_takes_a_part_is_seen_through_minibatches(take):
    x = np.linspace(-1.0, 1.0, 60)
    y = 2 * x + np.sin(20 * x)
    whole = from_numpyro(regression, x, y, "all")
    parts = from_numpyro(regression, x, y, take)
    assert isinstance(parts, pf.MinibatchTarget)
    assert parts.num_terms == 60 and parts.batch_size == 6
    at = jnp.array([0.2, 0.5])

    @jax.jit
    def both(at):
        return [(each.log_density(at), each.score(at)) for each in (parts, whole)]

    (value, score), (expected_value, expected_score) = both(at)
    np.testing.assert_allclose(value, expected_value, rtol=1e-5)
    np.testing.assert_allclose(score, expected_score, rtol=1e-4, atol=1e-4)
    # What a minibatch looks at are six of these terms, as of any MinibatchTarget.
    parameters = parts.structure.unflatten(at)
    term = parts.log_likelihood(parameters, jnp.asarray(7))
    expected = jax.scipy.stats.norm.logpdf(
        y[7], parameters["slope"] * x[7], parameters["noise"]
    )
    np.testing.assert_allclose(term, expected, rtol=1e-5)
    assert np.isfinite(parts.score(at, key=jax.random.key(0))).all()


def partly_seen(y, seen, at_least):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    twice = numpyro.deterministic("twice", 2 * mu)
    with numpyro.handlers.mask(mask=seen):
        numpyro.sample("y", dist.Normal(twice, 1), obs=y)
    # Two that are known to be larger than a bound.
    numpyro.factor("censored", 2 * jax.scipy.stats.norm.logsf(at_least, twice, 1))


def test_masked_and_censored_data_and_deterministic_sites():
    y, seen = jnp.array([1.0, jnp.nan, 0.5]), jnp.array([True, False, True])
    target = from_numpyro(partly_seen, y, seen, 1.5)
    norm = jax.scipy.stats.norm

    def log_density(mu):
        data = norm.logpdf(1.0, 2 * mu, 1) + norm.logpdf(0.5, 2 * mu, 1)
        return norm.logpdf(mu) + data + 2 * norm.logsf(1.5, 2 * mu, 1)

    x = jnp.array([0.3])
    np.testing.assert_allclose(target.log_density(x), log_density(0.3), rtol=1e-5)
    np.testing.assert_allclose(target.score(x), [jax.grad(log_density)(0.3)], rtol=1e-4)
    draws = jax.vmap(target.structure.unflatten)(jnp.ones((4, 1)))
    sites = Predictive(partly_seen, draws)(jax.random.key(0), None, seen, 1.5)
    np.testing.assert_allclose(sites["twice"], 2.0)


def two_groups(y):
    mu = numpyro.sample("mu", dist.Normal(0, 3))
    with numpyro.plate("rows", len(y)):
        group = numpyro.sample("group", dist.Bernoulli(0.3))
        numpyro.sample("y", dist.Normal(mu + 4 * group, 1), obs=y)


def test_discrete_sites_are_summed_over():
    pytest.importorskip("funsor")
    y = jnp.array([0.1, 4.2, 3.0])
    target = from_numpyro(two_groups, y)
    norm = jax.scipy.stats.norm
    rows = jnp.log(0.7 * norm.pdf(y, 0.4, 1) + 0.3 * norm.pdf(y, 4.4, 1))
    expected = norm.logpdf(0.4, 0, 3) + rows.sum()
    np.testing.assert_allclose(
        target.log_density(jnp.array([0.4])), expected, rtol=1e-5
    )


def test_discrete_sites_without_funsor(monkeypatch):
    monkeypatch.setitem(sys.modules, "funsor", None)
    with pytest.raises(MissingDependencyError, match="'group' is discrete"):
        from_numpyro(two_groups, jnp.zeros(3))


def sometimes():
    x = numpyro.sample("x", dist.Normal(0, 1))
    if x > numpyro.sample("y", dist.Normal(0, 1)):
        numpyro.sample("z", dist.Normal(0, 1))


def line(x, y=None):
    slope = numpyro.sample("slope", dist.Normal(0, 10))
    with numpyro.plate("points", len(x)):
        numpyro.sample("y", dist.Normal(slope * x, 1), obs=y)


X = jnp.arange(4.0)


def test_data_that_were_forgotten():
    with pytest.warns(UserWarning, match="this is its prior, of slope, y; if that is"):
        assert from_numpyro(line, X).dim == 5


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (jnp.zeros(3), "The data of 'y' have the shape (3,), and in the model it has"),
        (X.at[2].set(jnp.nan), "The data of 'y' are nan at [2]: leave out what is"),
    ],
)
def test_data_that_do_not_fit(y, words):
    with pytest.raises(UsageError) as error:
        from_numpyro(line, X, y)
    assert words in str(error.value)


@pytest.fixture
def unchecked():
    """Annotations are not checked, as in a user's program."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("wrong", [None, 3.0, "model"])
def test_what_is_no_model(wrong):
    with pytest.raises(UsageError, match="is the model, a function that samples, and"):
        from_numpyro(wrong, line, X)


def test_a_model_in_place_of_a_density_is_told_what_to_do():
    target = pf.Target(lambda x: line(X, X), dim=2)
    with pytest.raises(UsageError, match=r"bridges.from_numpyro\(model, data\)"):
        pf.fit(jax.random.key(0), target, progress=False)


def never_twice(calls=[]):  # noqa: B006
    calls.append(None)
    numpyro.sample(f"x{len(calls)}", dist.Normal(0, 1))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (one(lambda: dist.Bernoulli(0.5)), "The site 'x' is discrete"),
        (with_a_parameter, "has the parameter 'a', which is not drawn"),
        (subsampled, "The data in the plate 'rows' of the model do not follow"),
        (parts_of_two, "random parts of the plates rows and columns"),
        (each_its_own, "The site 'z' is inside the plate 'rows'"),
        (lambda: None, "The model samples nothing that is not observed"),
        (never_twice, "is not always there, or not always of one shape"),
        (sometimes, "Your model raised TracerBoolConversionError"),
        (broken, "Your model raised RuntimeError: no such table (test_bridges.py, "),
    ],
)
def test_refusals(model, words):
    with pytest.raises(UsageError) as error:
        from_numpyro(model)
    assert words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("numpyro", lambda: from_numpyro(one(lambda: dist.Normal(0, 1)))),
        ("arviz", lambda: to_arviz(np.zeros((3, 2)))),
        ("polars", lambda: to_polars(np.zeros((3, 2)))),
    ],
)
def test_what_is_not_installed(monkeypatch, package, call):
    for name in ("numpyro", "arviz", "arviz_base", "polars"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependencyError, match=rf"pushforward\[{package}\]"):
        call()


class TestPrior:
    """A sampler as a prior."""

    rows = np.random.default_rng(0).normal(size=(40, 2))
    y = rows @ np.array([1.0, -0.5]) + np.random.default_rng(1).normal(size=40)

    def posterior(self, rows, y):
        """That of coefficients with a N(0, 4 I) prior and noise of sd 1."""
        precision = rows.T @ rows + np.eye(2) / 4
        return np.linalg.solve(precision, rows.T @ y), precision

    def test_two_batches_are_as_good_as_all_data(self):
        """Conjugate, so that the posterior of each part is known."""
        mean, precision = self.posterior(self.rows[:15], self.y[:15])
        factor = np.linalg.cholesky(np.linalg.inv(precision))
        first = pf.Sampler.from_network(
            pf.networks.AffineMap(2),
            target=pf.Target(lambda p: 0.0, example={"b": np.zeros(2)}),
            preconditioner=Preconditioner.affine(jnp.array(mean), jnp.array(factor)),
        )
        prior = to_numpyro(first)

        def second(rows, y):
            p = prior.parameters(numpyro.sample("p", prior))
            numpyro.sample("y", dist.Normal(rows @ p["b"], 1), obs=y)

        target = from_numpyro(second, self.rows[15:], self.y[15:])
        mean, precision = self.posterior(self.rows, self.y)
        x = jnp.array([[0.5, 0.1], [1.5, -1.0], mean])
        scores = jax.jit(jax.vmap(target.score))(x)
        np.testing.assert_allclose(scores, (mean - x) @ precision, rtol=1e-3, atol=1e-3)

    def test_it_is_a_distribution(self):
        example = {"rate": 1.0, "w": jnp.ones(2) / 2}
        target = pf.Target(
            lambda p: 0.0,
            example=example,
            constraints={"rate": "positive", "w": "simplex"},
        )
        sampler = pf.Sampler.from_network(pf.networks.AffineMap(2), target=target)
        prior = to_numpyro(sampler)
        assert prior.event_shape == (2,) and prior.batch_shape == ()
        key = jax.random.key(0)
        draws = prior.sample(key, (3, 4))
        np.testing.assert_array_equal(
            draws, prior.sample(jax.random.key_data(key), (3, 4))
        )
        expected = jax.scipy.stats.norm.logpdf(draws).sum(axis=-1)
        np.testing.assert_allclose(prior.log_prob(draws), expected, rtol=1e-5)
        parameters = prior.parameters(draws)
        assert parameters["w"].shape == (3, 4, 2) and (parameters["rate"] > 0).all()
        leaves, tree = jax.tree.flatten(prior)
        again = jax.tree.unflatten(tree, leaves)
        np.testing.assert_array_equal(again.sample(key, (2,)), prior.sample(key, (2,)))

    def test_it_needs_a_density(self):
        noisy = pf.Sampler.from_network(pf.networks.AffineMap(2), noise_scale=0.1)
        with pytest.raises(UsageError, match="this one adds noise"):
            to_numpyro(noisy)


class TestArviz:
    def test_names_and_shapes(self):
        draws = {"a": np.arange(10.0).reshape(5, 2), "b": {"c": np.ones(5)}}
        posterior = to_arviz(draws)["posterior"]
        assert posterior["a"].dims == ("chain", "draw", "a_dim_0")
        np.testing.assert_array_equal(posterior["a"].values[0], draws["a"])
        assert posterior["b.c"].shape == (1, 5)

    def test_a_bare_vector_and_what_is_passed_on(self):
        found = to_arviz(np.zeros((5, 2)), dims={"x": ["side"]})["posterior"]
        assert found["x"].dims == ("chain", "draw", "side")

    def test_other_groups(self):
        ahead, data = {"y": np.ones((5, 3))}, {"y": np.zeros(3)}
        found = to_arviz(np.zeros((5, 2)), predictive=ahead, observed=data)
        assert found["posterior_predictive"]["y"].shape == (1, 5, 3)
        assert found["observed_data"]["y"].shape == (3,)

    def test_a_file_of_draws(self, tmp_path):
        np.savez(tmp_path / "draws.npz", a=np.arange(5.0), b=np.ones((5, 2)))
        with np.load(tmp_path / "draws.npz") as file:
            posterior = to_arviz(file)["posterior"]
        np.testing.assert_array_equal(posterior["a"].values, [np.arange(5.0)])
        assert posterior["b"].shape == (1, 5, 2)

    def test_groups_of_numpyro_are_named_with_dots(self):
        assert "g.tau" in to_arviz({"g/tau": [1.0, 2.0]})["posterior"]

    @pytest.mark.parametrize(
        ("draws", "words"),
        [
            ({"a": np.zeros(3), "b": np.zeros(2)}, "a has (3,), b has (2,)."),
            (1.0, "one common leading axis, the draws, but of their shapes x has ()."),
            ({}, "arrays of numbers, or a tree of such arrays, and this dict is not."),
            (None, "and this NoneType is not."),
            ("draws.npz", "and this str is not."),
            ({"a": np.array(["u"])}, "and this dict is not."),
            ({"a": None, "b": np.zeros(3)}, "and this dict is not."),
            ({"draw": np.zeros(3)}, "ArviZ cannot hold a parameter named 'draw'"),
            ({"g": {"t": np.zeros(3)}, "g.t": np.zeros(3)}, "cannot hold a parameter"),
        ],
        ids=str,
    )
    def test_what_is_no_set_of_draws(self, draws, words):
        with pytest.raises(UsageError) as error:
            to_arviz(draws)
        assert words in str(error.value)

    def test_weights_likelihoods_and_the_prior(self):
        draws = {"a": np.arange(4.0), "b": np.ones((4, 2))}
        weights = np.array([0.1, 0.2, 0.3, 0.4])
        weighed = pf.ImportanceSample(draws, weights, 0.0, 0.1, 3.0, 0.2)
        found = to_arviz(
            weighed,
            log_likelihood={"y": np.zeros((4, 3))},
            prior={"a": np.zeros(7)},
            coords={"side": ["left", "right"]},
            dims={"b": ["side"]},
        )
        np.testing.assert_array_equal(found["sample_stats"]["weight"], [weights])
        np.testing.assert_allclose(
            found["sample_stats"]["log_weight"], [np.log(weights)]
        )
        assert found["log_likelihood"]["y"].shape == (1, 4, 3)
        assert found["prior"]["a"].shape == (1, 7)
        assert list(found["posterior"]["b"].coords["side"].values) == ["left", "right"]

    def test_the_arviz_that_has_inference_data(self, monkeypatch):
        """What versions before 1 take, by a stand-in."""
        taken = {}

        class Stand:
            InferenceData = object

            @staticmethod
            def from_dict(**groups):
                taken.update(groups)
                return "their own"

        monkeypatch.setitem(sys.modules, "arviz", Stand)
        found = to_arviz({"a": np.zeros(3)}, observed={"y": np.zeros(2)})
        assert found == "their own"
        assert set(taken) == {"posterior", "observed_data", "coords", "dims"}
        assert taken["posterior"]["a"].shape == (1, 3)

    def test_frames(self):
        pandas = pytest.importorskip("pandas")
        draws = {"a": np.arange(3.0), "b": {"c": np.arange(12.0).reshape(3, 2, 2)}}
        frame = to_pandas(draws)
        assert isinstance(frame, pandas.DataFrame)
        names = ["a", "b.c[0,0]", "b.c[0,1]", "b.c[1,0]", "b.c[1,1]"]
        assert list(frame.columns) == names
        np.testing.assert_array_equal(frame["b.c[1,0]"], [2.0, 6.0, 10.0])

    def test_frames_of_polars(self):
        pytest.importorskip("polars")
        frame = to_polars(np.arange(6.0).reshape(3, 2))
        assert frame.columns == ["x[0]", "x[1]"] and frame["x[1]"].to_list() == [
            1,
            3,
            5,
        ]

    def test_a_sampler_is_not_draws(self):
        sampler = pf.Sampler.from_network(pf.networks.AffineMap(2))
        with pytest.raises(UsageError, match="are needed here, not a Sampler"):
            to_arviz(sampler)
