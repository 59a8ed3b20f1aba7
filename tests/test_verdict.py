"""The verdict's calibration, its references, and the tests it is made of."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import pushforward as pf
from pushforward.diagnostics import check, energies, sliced_w2
from pushforward.diagnostics.reference import DOUBT, percent, point
from pushforward.diagnostics.two_sample import Frame, SlicedW2, kolmogorov_smirnov
from pushforward.errors import UsageError
from pushforward.networks import AffineMap
from pushforward.sampler import Sampler
from pushforward.targets.coordinates import Whitening
from pushforward.targets.planar import GaussianMixture

# The references are Markov chains of many steps.
pytestmark = pytest.mark.optimised

N = 500
EXACT = tuple(
    name
    for name in pf.targets.names()
    if name != "funnel_coinsvgd"  # a score without exact draws
)


def two_modes(shares, n=N, means=((-2.0, 2.0), (2.0, -2.0)), seed=0):
    """Draws of two Gaussians of covariance I/2 with the given shares."""
    density = GaussianMixture(means, np.sqrt(0.5))
    rng = np.random.default_rng(seed)
    chosen = rng.choice(2, size=n, p=shares)
    centres = np.asarray(density.means)[chosen]
    return centres + np.sqrt(0.5) * rng.standard_normal((n, 2))


def without_exact_draws(name):
    target = pf.targets.get(name)
    return pf.Target(target.function, structure=target.structure)


def finding(verdict, name):
    return next(f for f in verdict.findings if f.name == name)


@pytest.fixture(scope="module")
def mog2():
    return pf.targets.get("mog2")


def test_exact_draws_of_mog2_pass(mog2):
    verdicts = [
        check(jax.random.key(i), mog2, mog2.sample(jax.random.key(100 + i), N), n=N)
        for i in range(20)
    ]
    # With false alarms of 1 %, more than one in 20 has a chance of 2 %.
    assert sum(verdict.passed is True for verdict in verdicts) >= 19
    # The levels of all tests together are the 1 % that is promised.
    thresholds = [f.threshold for f in verdicts[0].findings]
    assert sum(thresholds) == pytest.approx(0.01)
    # KSD, drift and the others give no p-value twice.
    p_values = np.array([[f.p_value for f in v.findings] for v in verdicts])
    assert np.all(
        stats.kstest(p_values, "uniform", alternative="greater").pvalue > 1e-4
    )


@pytest.mark.parametrize(("shares", "said"), [((1, 0), "0"), ((0.8, 0.2), r"[12]\d")])
def test_a_lost_mode_and_a_light_one_are_named(mog2, shares, said):
    verdict = check(jax.random.key(0), mog2, two_modes(shares), n=N)
    assert verdict.passed is False
    found = finding(verdict, "mode weights")
    assert found.ok is False
    words = rf"the mode near \(2, -2\) holds \d\d % of the reference and {said} % of"
    assert re.match(words, found.sentence)
    assert verdict.summary.startswith(found.sentence)
    # The discrepancy, which sees only scores, sees nothing wrong.
    assert finding(verdict, "Stein discrepancy").ok is True


def test_two_modes_against_a_reference_made_here(mog2):
    target = without_exact_draws("mog2")
    # The draws are exact: not to be called wrong, whatever else is said.
    verdict = check(jax.random.key(0), target, mog2.sample(jax.random.key(1), N), n=N)
    assert verdict.passed is True, str(verdict)
    assert "two tempered-SMC runs of 4096 particles" in verdict.reference
    assert "target evaluations" in str(verdict)
    for shares, said in (((1, 0), "0"), ((0.8, 0.2), r"[12]\d")):
        verdict = check(jax.random.key(2), target, two_modes(shares), n=N)
        assert verdict.passed is False
        words = rf"the mode near \(2, -2\) holds \d\d % of the reference and {said} %"
        assert re.match(words, verdict.summary)


@pytest.mark.parametrize("shares", [(1, 0), (0.5, 0.5)])
def test_a_mode_out_of_the_reference_s_reach_is_not_held_against_the_draws(shares):
    # One of the two runs starts at the origin with a scale of 3 and cannot see the
    # mode at (40, 40); the same program as for mog2 is run.
    means = ((0.0, 0.0), (40.0, 40.0))
    target = pf.Target(GaussianMixture(means, np.sqrt(0.5)), dim=2, names=("x", "y"))
    verdict = check(jax.random.key(0), target, two_modes(shares, means=means), n=N)
    assert verdict.passed is None
    assert str(verdict).startswith("cannot tell")
    assert "disagree" in verdict.summary
    assert finding(verdict, "mode weights").ok is None


def test_a_given_reference_is_used_and_judged(mog2):
    draws = mog2.sample(jax.random.key(0), N)
    good = mog2.sample(jax.random.key(1), 3000)
    verdict = check(jax.random.key(2), mog2, draws, reference=good, n=N)
    assert verdict.passed is True
    assert verdict.reference == "2,000 of the 3,000 draws you gave"
    # A reference of some other target cannot condemn draws that fit this one.
    verdict = check(jax.random.key(2), mog2, draws, reference=good + 1.0, n=N)
    assert verdict.passed is None
    assert "the 3,000 draws you gave" in verdict.summary
    # But draws that fail on their own fail whatever the reference is.
    verdict = check(jax.random.key(2), mog2, draws + 1.0, reference=good + 1.0, n=N)
    assert verdict.passed is False
    with pytest.raises(UsageError, match="at least 200"):
        check(jax.random.key(2), mog2, draws, reference=good[:150], n=N)
    with pytest.raises(UsageError, match="not finite"):
        check(jax.random.key(2), mog2, draws, reference=good.at[0].set(jnp.nan), n=N)


def test_a_score_alone():
    def exact(key, n):
        return jax.random.normal(key, (n, 2))

    draws = exact(jax.random.key(0), N)
    target = pf.ScoreTarget(lambda x: -x, 2)
    verdict = check(jax.random.key(1), target, draws, n=N)
    assert verdict.passed is None
    assert "no log density" in verdict.summary
    assert [f.name for f in verdict.findings] == ["Stein discrepancy"]
    assert check(jax.random.key(1), target, 1.3 * draws, n=N).passed is False
    target = pf.ScoreTarget(lambda x: -x, 2, sample=exact)
    verdict = check(jax.random.key(1), target, draws, n=N)
    assert verdict.passed is True
    assert "energy" not in [f.name for f in verdict.findings]


def test_a_noise_conditional_score_is_compared_at_its_own_noise():
    """The score at the least noise is that of noisy draws, and they get the noise."""
    target = pf.NoiseConditionalTarget(
        lambda x, sigma: -x / (1 + sigma**2), 2, sigma_range=(1.0, 2.0)
    )
    draws = jax.random.normal(jax.random.key(0), (N, 2))
    verdict = check(jax.random.key(1), target, draws, n=N)
    assert finding(verdict, "Stein discrepancy").ok is True
    assert verdict.passed is None


def test_many_observations_get_no_reference_made_here():
    data = np.random.default_rng(0).standard_normal(2000)
    target = pf.MinibatchTarget(
        lambda mu: -0.5 * jnp.sum(mu**2),
        lambda mu, y: -0.5 * jnp.sum((y - mu) ** 2),
        jnp.asarray(data, float),
        dim=1,
    )
    exact = np.random.default_rng(1).standard_normal((200, 1)) / np.sqrt(2001)
    verdict = check(jax.random.key(0), target, exact + data.sum() / 2001)
    assert verdict.passed is None
    assert "2,000 observations" in verdict.summary


def test_a_tree_with_a_constraint():
    def log_density(p):
        outside = (p["mu"] > 8) | (p["tau"] > 30)
        return jnp.where(outside, -jnp.inf, -0.5 * p["mu"] ** 2 - p["tau"])

    def sample(key, n):
        keys = jax.random.split(key)
        return {
            "mu": jax.random.normal(keys[0], (n,)),
            "tau": jax.random.exponential(keys[1], (n,)),
        }

    target = pf.targets.constrained(
        log_density, {"tau": "positive"}, example={"mu": 0.0, "tau": 1.0}, sample=sample
    )
    draws = target.sample(jax.random.key(0), N)
    verdict = check(jax.random.key(1), target, draws, n=N)
    assert verdict.passed is True, str(verdict)
    flipped = {**draws, "tau": draws["tau"].at[:3].multiply(-1)}
    verdict = check(jax.random.key(1), target, flipped, n=N)
    assert verdict.passed is False
    assert "3 of 500 draws are not finite (coordinate 'tau')" in verdict.summary
    outside = {**draws, "mu": draws["mu"].at[:7].set(9.0)}
    verdict = check(jax.random.key(1), target, outside, n=N)
    assert verdict.passed is False
    assert "7 of 500 draws lie where the log density" in verdict.summary


def test_draws_that_are_no_numbers(mog2):
    draws = np.array(mog2.sample(jax.random.key(0), 5 * N))
    draws[::500, 1] = np.inf
    verdict = check(jax.random.key(1), mog2, draws, n=N)
    assert verdict.passed is False
    # All draws are searched, not only those that are tested.
    assert "5 of 2,500 draws are not finite (coordinate 'y')" in verdict.summary
    verdict = check(jax.random.key(1), mog2, np.full((N, 2), np.nan), n=N)
    assert verdict.passed is False
    assert "500 of 500 draws are not finite" in verdict.summary
    assert str(verdict).splitlines()[1] == (
        "Tested: only whether draws are finite; 0 finite draws are too few to compare."
    )


@pytest.mark.parametrize(
    ("draws", "said"),
    [
        (np.zeros((99, 2)), "at least 100"),
        (np.zeros((N, 3)), r"the shape \(500, 3\)"),
        ({"x": np.zeros((N, 2))}, "the structure"),
        (np.zeros(N), "the shape"),
        ("draws.npz", "A str is neither a sampler nor draws"),
    ],
)
def test_draws_that_do_not_fit(mog2, draws, said):
    with pytest.raises(UsageError, match=said):
        check(jax.random.key(0), mog2, draws)


def test_other_usage_errors(mog2):
    with pytest.raises(UsageError, match="at least 100"):
        check(jax.random.key(0), mog2, np.zeros((N, 2)), n=50)
    tree = pf.targets.get("eight_schools_centred")
    draws = tree.sample(jax.random.key(0), 200)
    with pytest.raises(UsageError, match="cannot be read"):
        check(jax.random.key(0), tree, {**draws, "mu": draws["mu"][:150]})


def test_a_sampler_and_many_draws():
    target = pf.targets.get("gaussian")
    factor = np.linalg.cholesky(np.linalg.inv([[3.0, -0.5], [-0.5, 1.0]]))
    whitening = Whitening.affine(jnp.array([-1.0, 1.0]), jnp.asarray(factor, float))
    sampler = Sampler(AffineMap(2), whitening, jnp.zeros(()), target.structure)
    verdict = check(jax.random.key(0), target, sampler, n=N)
    assert verdict.passed is True, str(verdict)
    assert (verdict.n, verdict.given) == (N, N)
    draws = sampler.sample(jax.random.key(1), 50_000)
    verdict = check(jax.random.key(2), target, draws, n=N)
    assert verdict.passed is True, str(verdict)
    assert "500 of 50,000 draws" in str(verdict)
    with pytest.raises(UsageError, match="coordinates"):
        check(jax.random.key(0), pf.targets.get("student_t"), sampler)


def test_the_number_of_draws_compiles_nothing():
    traces = []

    def log_density(x):
        traces.append(None)
        return -0.5 * jnp.sum(x**2)

    target = pf.Target(log_density, 2)
    rng = np.random.default_rng(0)
    reference = rng.standard_normal((2 * N, 2))
    check(jax.random.key(0), target, rng.standard_normal((N, 2)), reference, n=N)
    before = len(traces)
    for count in (300, 30 * N):
        draws = rng.standard_normal((count, 2))
        check(jax.random.key(1), target, draws, reference, n=N)
    assert len(traces) == before


def test_the_verdict_in_words_and_in_json(mog2):
    draws = mog2.sample(jax.random.key(0), N)
    verdict = check(jax.random.key(1), mog2, draws, n=N)
    lines = str(verdict).splitlines()
    assert lines[0].startswith("passed: 500 draws cannot be told from exact draws by")
    assert len(lines) == 2 + len(verdict.findings)
    assert all(line.startswith("  ✓ ") and "reference" in line for line in lines[2:])
    stored = json.loads(json.dumps(verdict.to_dict(), allow_nan=False))
    assert stored["passed"] is True and stored["n"] == N
    names = [f["name"] for f in stored["findings"]]
    assert names == [f.name for f in verdict.findings]
    assert all(0 < f["p_value"] <= 1 for f in stored["findings"])


def test_what_a_reader_sees_of_points_and_shares():
    assert point(np.array([2.0001, -2.0])) == "(2, -2)"
    assert point(np.array([-0.0001, 12.345])) == "(0, 12)"
    assert point(np.arange(6.0)) == "(0, 1, 2, 3, …)"
    assert [percent(s) for s in (0.0, 0.001, 0.5, 0.999, 1.0)] == [
        "0 %",
        "0.1 %",
        "50 %",
        "99.9 %",
        "100 %",
    ]


@pytest.mark.parametrize("sizes", [(300, 300), (200, 350)])
def test_the_permuted_distance_is_the_sliced_one(sizes):
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((size, 1)) for size in sizes)
    # In one dimension there is only one direction.
    expected = sliced_w2(
        jax.random.key(0), jnp.asarray(x, float), jnp.asarray(y, float), projections=1
    )
    distance = SlicedW2(rng, 1, projections=3)
    tested = distance.test(x, y, permutations=99)
    assert tested.statistic == pytest.approx(float(expected), rel=1e-4)
    # Samples of one law are as far apart as those dealt from both.
    assert 0.3 < tested.statistic / distance.typical(x, y) < 3


def test_the_permutation_test_is_calibrated():
    rng = np.random.default_rng(0)
    p_values = []
    for _ in range(200):
        # Heavy tails, and unequal sizes.
        x, y = rng.standard_t(2, (60, 2)), rng.standard_t(2, (90, 2))
        p_values.append(SlicedW2(rng, 2, 8).test(x, y, permutations=99).p_value)
    # Never more small p-values than uniform ones would have.
    assert stats.kstest(p_values, "uniform", alternative="greater").pvalue > 0.01
    shifted = SlicedW2(rng, 2).test(x + 2, y, permutations=99)
    assert shifted.p_value == pytest.approx(0.01)


def test_kolmogorov_smirnov_agrees_with_scipy():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((400, 3)), rng.standard_normal((700, 3)) + 0.1
    statistics, p_values = kolmogorov_smirnov(x, y, 700.0)
    expected = stats.ks_2samp(x, y, method="asymp")
    np.testing.assert_allclose(statistics, expected.statistic)
    np.testing.assert_allclose(p_values, expected.pvalue, rtol=1e-6)
    # A reference of fewer independent draws says less.
    assert np.all(kolmogorov_smirnov(x, y, 100.0)[1] > p_values)


def test_the_frame_bends_only_heavy_tails():
    rng = np.random.default_rng(0)
    draws = np.column_stack(
        [5 + 100 * rng.standard_normal(4000), rng.standard_t(2, 4000), np.zeros(4000)]
    )
    frame = Frame.of(draws)
    assert frame.bent.tolist() == [False, True, False]
    standard = frame(draws)
    assert np.std(standard[:, 0]) == pytest.approx(1, abs=0.1)
    assert np.all(np.abs(standard) < 8)


def test_a_chain_from_its_target_does_not_drift(mog2):
    draws = np.asarray(mog2.sample(jax.random.key(0), 2048), float)
    before = energies.log_densities(mog2, draws)
    stirred = energies.stir(jax.random.key(1), mog2, jnp.asarray(draws))
    after = energies.log_densities(mog2, np.asarray(stirred, float))
    assert energies.drift(before, after).p_value > DOUBT
    # Draws that are too narrow spread, and their density falls.
    centres = np.where(draws[:, :1] < 0, [[-2.0, 2.0]], [[2.0, -2.0]])
    narrow = centres + 0.9 * (draws - centres)
    moved = energies.after_mala(jax.random.key(2), mog2, narrow, 20)
    before, after = (energies.log_densities(mog2, part) for part in (narrow, moved))
    drift = energies.drift(before, after)
    assert drift.mean < 0 and drift.p_value < 1e-4
    assert energies.drift(before, before).p_value == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
def test_exact_draws_pass_in_95_of_100_seeds(name):
    target = pf.targets.get(name)
    verdicts = [
        check(jax.random.key(i), target, target.sample(jax.random.key(1000 + i), 2000))
        for i in range(100)
    ]
    assert sum(verdict.passed is True for verdict in verdicts) >= 95


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mog2", "donut", "squiggle", "rosenbrock"])
def test_exact_draws_do_not_fail_against_a_reference_made_here(name):
    exact, target = pf.targets.get(name), without_exact_draws(name)
    passed = [
        check(
            jax.random.key(i), target, exact.sample(jax.random.key(2000 + i), 2000)
        ).passed
        for i in range(40)
    ]
    assert sum(p is False for p in passed) <= 2
    assert sum(p is True for p in passed) >= 34


@pytest.mark.slow
@pytest.mark.parametrize("name", ["neal_funnel", "eight_schools_centred", "gmm40"])
def test_a_poor_reference_knows_that_it_is_poor(name):
    exact, target = pf.targets.get(name), without_exact_draws(name)
    for i in range(5):
        draws = exact.sample(jax.random.key(2000 + i), 2000)
        assert check(jax.random.key(i), target, draws).passed is None


@pytest.mark.slow
def test_a_lost_and_a_light_mode_are_named_in_every_seed():
    target = without_exact_draws("mog2")
    for i in range(10):
        for shares in ((1, 0), (0.8, 0.2)):
            draws = two_modes(shares, 2000, seed=i)
            verdict = check(jax.random.key(i), target, draws)
            assert verdict.passed is False
            assert "the mode near (2, -2)" in verdict.summary
