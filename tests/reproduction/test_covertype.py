"""The second experiment: its posterior, its Laplace fit, its reference, its page."""

import json
import time
from pathlib import Path
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import pushforward as pf
from pushforward.errors import FileError, UsageError
from pushforward.mcmc import initialise_by_laplace
from pushforward.networks import AffineMap
from pushforward.targets.preconditioner import Preconditioner
from pushforward.training import Event
from pushforward.training.history import History
from reproduction.common.results import Results, read
from reproduction.covertype import data, settings
from reproduction.covertype import page as report
from reproduction.covertype import posterior as model
from reproduction.covertype import run as covertype
from reproduction.covertype.posterior import Affine
from reproduction.covertype.reference import Reference
from reproduction.covertype.run import (
    break_even,
    row_evaluations,
    run_classic,
)
from reproduction.report import render

ROOT = Path(__file__).resolve().parents[2]
RNG = np.random.default_rng(0)


def rows(n):
    return data.split(*data.miniature(n), source="miniature")


def exact(x, rows):
    """Log density, gradient and curvature of the posterior at one point, in NumPy."""
    w, alpha = x[:-1], np.exp(x[-1])
    features = rows.train_x.astype(np.float64)
    logits = features @ w
    chance = 1 / (1 + np.exp(-logits))
    value = rows.train_y @ logits - np.logaddexp(0, logits).sum()
    value += scipy.stats.norm(0, alpha**-0.5).logpdf(w).sum()
    value += scipy.stats.expon(scale=1 / model.RATE).logpdf(alpha) + x[-1]
    pull = model.RATE + 0.5 * w @ w
    gradient = features.T @ (rows.train_y - chance) - alpha * w
    gradient = np.append(gradient, 0.5 * len(w) + 1 - alpha * pull)
    curvature = np.zeros((len(x), len(x)))
    weighted = features * (chance * (1 - chance))[:, None]
    curvature[:-1, :-1] = weighted.T @ features + alpha * np.eye(len(w))
    curvature[:-1, -1] = curvature[-1, :-1] = alpha * w
    curvature[-1, -1] = alpha * pull
    return value, gradient, curvature


@pytest.mark.usefixtures("x64")
@pytest.mark.once
class TestPosterior:
    def test_against_scipy(self):
        few = rows(200)
        target = model.posterior(few)
        assert (target.dim, target.batch_size) == (56, 160)
        points = RNG.normal(size=(3, 56))
        found = [target.log_density(jnp.asarray(x)) for x in points]
        expected = [exact(x, few) for x in points]
        # Both leave out constants of their own.
        gaps = np.array(found) - [value for value, _, _ in expected]
        np.testing.assert_allclose(gaps, gaps[0], rtol=1e-10)
        scores = [target.score(jnp.asarray(x)) for x in points]
        np.testing.assert_allclose(scores, [g for _, g, _ in expected], rtol=1e-9)

    def test_without_the_jacobian_it_is_another(self):
        x, y = jnp.asarray(RNG.normal(size=(2, 56)))
        s = [jnp.append(v[:-1], jnp.exp(0.5 * v[-1])) for v in (x, y)]
        ours = model.log_prior(x) - model.log_prior(y)
        theirs = model.log_prior_hu(s[0]) - model.log_prior_hu(s[1])
        assert float(ours - theirs) == pytest.approx(float(x[-1] - y[-1]))

    def test_the_relative_density_is_the_same(self):
        few = rows(500)
        target = model.posterior(few)
        factor = np.tril(RNG.normal(size=(56, 56))) / 56
        whitening = Affine(jnp.asarray(RNG.normal(size=56)), jnp.asarray(factor))
        close = model.relative(few, whitening)
        # The rows are rounded to 32-bit, 6e-8 of a logit's change.
        for u in jnp.asarray(RNG.normal(size=(3, 56))):
            there, here = whitening.to_target(u), whitening.centre
            gap = target.log_density(there) - target.log_density(here)
            assert float(close.log_density(u)) == pytest.approx(float(gap), rel=1e-5)

    def test_predictions(self):
        draws, few = RNG.normal(size=(7, 56)), rows(300)
        arrays = (jnp.asarray(a, float) for a in (draws, few.test_x, few.test_y))
        found = model.predict(*arrays)
        logits = few.test_x.astype(np.float64) @ draws[:, :-1].T
        chance = (1 / (1 + np.exp(-logits))).mean(axis=1)
        right = (chance > 0.5) == (few.test_y == 1)
        held_out = np.where(few.test_y == 1, chance, 1 - chance)
        assert float(found.accuracy) == pytest.approx(right.mean())
        assert float(found.log_likelihood) == pytest.approx(np.log(held_out).mean())


def test_prior_draws():
    """alpha has mean 100 and sd 100, w sqrt(alpha) is standard: 5 standard errors."""
    x = np.asarray(model.prior_draws(jax.random.key(0), 4000, 56))
    alpha = np.exp(x[:, -1])
    assert abs(alpha.mean() - 100) < 5 * 100 / 4000**0.5
    z = x[:, :-1] * np.sqrt(alpha)[:, None]
    assert abs(z.std() - 1) < 5 / (2 * z.size) ** 0.5


class TestLaplace:
    def test_in_32_bit_on_a_badly_conditioned_posterior(self):
        """Two directions are known through the prior alone, some soils hardly.

        Sums over n rows are rounded to about 1e-7 n^(1/2) of the gradient of one, which
        the prior's sds (up to 5) magnify: far below .01, as the curvature's below 1 %.
        """
        many = rows(10_000)
        target = model.posterior(many)
        look = eqx.filter_jit(initialise_by_laplace)(
            jax.random.key(0), target, particles=8
        )
        mode = np.asarray(look.preconditioner.centre, np.float64)
        factor = np.asarray(look.preconditioner.factor, np.float64)
        _, gradient, curvature = exact(mode, many)
        assert np.linalg.cond(curvature) > 1e3
        assert np.linalg.norm(factor.T @ gradient) < 0.01
        found = np.linalg.eigvalsh(factor.T @ curvature @ factor)
        np.testing.assert_allclose(found, 1.0, atol=0.01)
        assert np.all(np.triu(factor, 1) == 0)
        assert np.all(np.diag(factor) > 0)

    def test_flat_and_upward_directions_get_a_finite_scale(self):
        """A quartic has no curvature at its mode, and the second none anywhere."""
        target = pf.MinibatchTarget(
            lambda x: -jnp.sum((x[:1] - 2.0) ** 4) - 5.0 * x[2] ** 2,
            lambda x, datum: -0.5 * (x[2] - datum) ** 2,
            np.ones(10),
            3,
        )
        keys = jax.random.split(jax.random.key(0), 2)
        run = jax.jit(
            jax.vmap(lambda key: initialise_by_laplace(key, target, particles=8))
        )
        look = run(keys)
        factor = np.asarray(look.preconditioner.factor)
        assert np.isfinite(factor).all()
        # 10 observations of mean 1 and a prior of precision 10: mean .5, sd 20^(-1/2).
        np.testing.assert_allclose(look.preconditioner.centre[:, 2], 0.5, atol=1e-5)
        np.testing.assert_allclose(factor[:, 2, 2], 20**-0.5, rtol=1e-4)
        assert np.all(factor[:, 1, 1] > 1)
        # Newton's steps on a quartic close a third of the gap each.
        np.testing.assert_allclose(look.preconditioner.centre[:, 0], 2.0, atol=0.2)


class TestReference:
    def reference(self):
        draws = RNG.normal(size=(50, 56)).astype(np.float32)
        whitening = Affine(jnp.ones(56), 2 * jnp.eye(56))
        return Reference(whitening, np.ones(56), 2 * np.ones(56), draws)

    def test_errors(self):
        shifted = 1 + RNG.normal(size=(1000, 56))
        shifted = 1 + 2 * (shifted - shifted.mean(axis=0)) / shifted.std(axis=0)
        shifted[:, 3] = 2 + 3 * (shifted[:, 3] - 1)
        found = self.reference().errors(shifted)
        expected = {"mean_error": 0.5, "sd_low": 1.0, "sd_high": 3.0}
        assert found == pytest.approx(expected)

    def test_distance_is_in_whitened_coordinates(self):
        kept = self.reference()
        there = jnp.asarray(1 + 2 * kept.draws) + 2.0
        # Every coordinate is off by 1: a shift of 56^(1/2), over 56^(1/2).
        found = kept.distance(jax.random.key(0), there)
        assert found == pytest.approx(1.0, rel=0.1)
        lost = kept.distance(jax.random.key(0), there.at[0, 0].set(jnp.nan))
        assert np.isnan(lost)

    def test_saved_and_loaded(self, tmp_path):
        kept, path = self.reference(), tmp_path / "r.npz"
        digest = kept.save(path)
        found = Reference.load(path, digest)
        np.testing.assert_array_equal(found.draws, kept.draws)
        np.testing.assert_array_equal(found.whitening.factor, kept.whitening.factor)
        with pytest.raises(FileError, match="is not the reference of the result file"):
            Reference.load(path, "0" * 64)
        with pytest.raises(FileError, match="which does not exist"):
            Reference.load(tmp_path / "other.npz", digest)


def test_break_even():
    # 10 s of training against 2 s of warm-up, and 1 ms against 2 ms a draw.
    assert break_even(10.0, 1000.0, 2.0, 0.002) == pytest.approx(8000)
    assert break_even(1.0, 1000.0, 2.0, 0.002) == 0
    assert break_even(10.0, 3000.0, 2.0, 0.002) is None


def test_rows_looked_at():
    target = model.posterior(rows(1000))
    count = 7 + 5 * 16
    method = pf.methods.KSD(steps=5, batch_size=16).resolve(target)
    whitened = row_evaluations(count, method, target)
    assert whitened == 7 * 800 + 5 * 16 * 500 * 2
    plain = pf.methods.KSD(steps=5, batch_size=16, whiten=False).resolve(target)
    assert row_evaluations(count, plain, target) == 7 * 800 + 5 * 16 * 500


@pytest.mark.once
@pytest.mark.parametrize("kind", ["sgld", "svgd"])
def test_classic_samplers_find_the_labels(kind):
    """A few passes over 8000 rows: better than a coin by far, whatever the posterior.

    A row's label is that of a coin with probability about .5; 2000 test rows tell an
    accuracy to .011, and .55 is more than four of that above it.
    """
    few = rows(10_000)
    what = settings.Classic(kind, epochs=3.0 if kind == "sgld" else 2.0)
    sets, seen = run_classic(jax.random.key(0), few, what, 2)
    assert sets.shape == (2, 100, 56)
    assert seen == (24_000 if kind == "sgld" else 100 * 16_000)
    for x in sets:
        found = model.predict(x, jnp.asarray(few.test_x), jnp.asarray(few.test_y))
        assert float(found.accuracy) > 0.55


class TestSettings:
    def test_every_row_of_the_paper(self):
        names = {group.name for group in settings.groups(settings.scale("full"))}
        classic = {"sgld|paper", "svgd|paper", "dsvi|ours"}
        both = ("steingan", "critic", "ksd", "kl", "dft_l2", "dft")
        neural = {f"{m}|{s}" for m in both for s in ("paper", "ours")}
        more = {f"recipe|{s}" for s in ("ours", "alone")}
        more |= {"nuts|reference", "laplace|ours"}
        assert names == classic | neural | more
        assert settings.paper("dft") == pytest.approx((0.7636, 0.00009))
        assert settings.paper("ksd") is None

    def test_the_reference_comes_first(self):
        for scale in settings.SCALES.values():
            assert settings.groups(scale)[0] == settings.REFERENCE

    def test_unknown_names(self, tmp_path):
        with pytest.raises(UsageError, match="no scale 'huge'"):
            covertype.reproduce(tmp_path, "huge")
        with pytest.raises(UsageError, match="no method 'hmc' at this scale"):
            covertype.reproduce(tmp_path, "smoke", only=["hmc"])
        assert not list(tmp_path.iterdir())


@pytest.mark.once
def test_the_smoke_scale(tmp_path):
    out, said = tmp_path / "results", []
    results = covertype.reproduce(out, "smoke", say=said.append)
    names = {group.name for group in settings.groups(settings.scale("smoke"))}
    assert set(results.cells) == names
    assert len(said) == len(names)
    for record in results.records():
        if record["metric"] not in ("rhat", "sliced_w2"):
            assert record["value"] is not None, record
    # Class 2 is about half of the rows: who fits nothing scores a half.
    for method in ("nuts", "laplace"):
        record = results.find(method=method, metric="accuracy")
        assert record is not None
        assert record["value"] > 0.6
    made = render(out, tmp_path / "report")
    assert [path.name for path in made] == ["covertype.md", "covertype_training.png"]
    assert "too short to be a reference" in made[0].read_text()
    assert made[1].stat().st_size > 10_000
    # Nothing is run again, and the file is what it was.
    before = (out / "covertype.json").read_bytes()
    again = []
    covertype.reproduce(out, "smoke", say=again.append)
    assert again == []
    assert (out / "covertype.json").read_bytes() == before
    # A cell that is missing needs the reference's draws.
    content = json.loads(before)
    del content["cells"]["laplace|ours"]
    (out / "covertype.json").write_text(json.dumps(content))
    (out / "covertype_reference.npz").unlink()
    with pytest.raises(FileError, match="which does not exist"):
        covertype.reproduce(out, "smoke", only=["laplace"])


class TestTraining:
    """What is done around training, which is faked."""

    def bench(self, tmp_path, monkeypatch, *, interrupted):
        def in_passing(key, sampler):
            time.sleep(0.2)
            return {"accuracy": 0.5, "mean_error": 1.0}

        def fit_many(keys, target, method, *, callback, **options):
            whitening, structure = Preconditioner.identity(56), target.structure
            sampler = pf.Sampler(AffineMap(56), whitening, structure)
            events = [
                Event(n, 2, {}, target, History([]), 0, lambda: sampler) for n in (1, 2)
            ]
            rows = [{"stage": "ksd", **callback(event)} for event in events]
            history = History(rows)
            status = pf.Status.INTERRUPTED if interrupted else pf.Status.FINISHED
            return [
                pf.Fit(
                    sampler=sampler,
                    status=status,
                    history=history,
                    config={},
                    steps=i,
                    planned=i,
                    nonfinite_steps=0,
                    seconds=1.0,
                    evaluations=1,
                )
                for i in range(len(keys))
            ]

        def judged(bench, group, samplers, rows, seconds, together, **more):
            return [{"metric": "seconds", "value": seconds}]

        judge = SimpleNamespace(in_passing=in_passing)
        monkeypatch.setattr(pf, "fit_many", fit_many, raising=False)
        monkeypatch.setattr(covertype.Bench, "_judge", lambda bench: judge)
        monkeypatch.setattr(covertype.Bench, "_judged", judged)
        results = Results("covertype", "smoke", tmp_path / "covertype.json", {})
        scale = settings.scale("smoke")
        return covertype.Bench(scale, jax.random.key(0), 0, rows(200), results)

    def test_looking_is_no_part_of_its_seconds(self, tmp_path, monkeypatch):
        bench = self.bench(tmp_path, monkeypatch, interrupted=False)
        cell = bench.run(settings.Group("kl", "ours", pf.methods.KL(steps=4), 3))
        # Two looks took .4 s.
        assert abs(cell["records"][0]["value"]) < 0.2
        assert [each["steps"] for each in cell["training"]] == [0, 1, 2]

    def test_what_ctrl_c_left_half_trained_is_not_kept(self, tmp_path, monkeypatch):
        bench = self.bench(tmp_path, monkeypatch, interrupted=True)
        with pytest.raises(KeyboardInterrupt):
            bench.run(settings.Group("kl", "ours", pf.methods.KL(steps=4), 3))


def test_results_on_other_data_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "covertype", lambda **options: rows(200))
    reference = {"records": [], "source": "miniature", "rows": [160, 40]}
    path, other = tmp_path / "covertype.json", tmp_path / "other"
    name = settings.REFERENCE.name
    for change in ({"source": "real"}, {"rows": [1600, 400]}):
        Results("covertype", "smoke", path, {}).add(name, {**reference, **change})
        with pytest.raises(FileError, match="holds results on other data"):
            covertype.reproduce(tmp_path, "smoke", only=["nuts"])
        with pytest.raises(FileError, match="holds results on other data"):
            covertype.reproduce(other, "smoke", only=["nuts"], merge=[path])
        assert not other.exists()
    Results("covertype", "smoke", path, {}).add(name, reference)
    results = covertype.reproduce(tmp_path, "smoke", only=["nuts"], remark="again.")
    assert list(results.cells) == [name] and results.remark == "again."


def invented(group):
    """A cell as `full` would write it, with numbers that are easy to find."""
    shared = {
        "method": group.method,
        "setting": group.setting,
        "repeats": max(group.repeats, 2),
        "seconds": 12.5,
        "together": group.repeats,
        "device": "gpu: invented",
        "versions": {"jax": "0"},
    }
    values = {
        "accuracy": 0.7554,
        "log_likelihood": -0.5142,
        "mean_error": 0.125,
        "sd_low": 0.9,
        "sd_high": 1.1,
        "sliced_w2": 0.06,
        "row_evaluations": 3e9,
    }
    cell: dict = {}
    if group == settings.REFERENCE:
        values |= {"rhat": 1.002, "ess": 20_000.0, "divergences": 0.0}
        shared |= {"chains": 64, "draws": 1000, "warmup": 500, "warmup_seconds": 9.0}
        cell = {"rows": [464809, 116203], "source": "real", "good": True}
    else:
        values |= {"draw_microseconds": 0.25, "break_even": 4321.0}
    records = [
        {**shared, "metric": k, "value": v, "sd": 0.001, "n": 5000}
        for k, v in values.items()
    ]
    for record in records:
        theirs = settings.paper(group.method)
        if record["metric"] == "accuracy" and theirs is not None:
            record |= {"paper": theirs[0], "paper_sd": theirs[1]}
        if record["metric"] == "sliced_w2" and group != settings.REFERENCE:
            record["exact"] = 0.04
    if group.method in settings.WATCHED:
        cell["curve"] = [[1, 0.6, 0.01, 2.0, 0.1], [2, 0.75, 0.01, 0.5, 0.1]]
    return {"records": records, **cell}


@pytest.mark.once
def test_the_page_in_the_repository_is_what_its_file_says():
    results = read(ROOT / "results" / "covertype.json", "covertype")
    page = ROOT / "docs" / "results" / "covertype.md"
    assert page.read_text() == report.page(results)


@pytest.mark.once
def test_what_the_readme_says_about_it():
    results = read(ROOT / "results" / "covertype.json", "covertype")
    for method in ("recipe", "kl", "dft"):
        found = results.find(method=method, setting="ours", metric="sliced_w2")
        # Within what sets of reference draws differ among themselves: three of their
        # standard deviations.
        assert found["value"] < found["exact"] + 3 * found["exact_sd"]
    text = " ".join((ROOT / "README.md").read_text().split())
    claim = "Reverse KL (the default there), KL and DFT all reach the distance"
    assert f"{claim} that draws of" in text


@pytest.mark.once
def test_the_page_has_every_row(tmp_path):
    results = Results("covertype", "full", tmp_path / "covertype.json", {})
    for group in settings.groups(settings.scale("full")):
        results.cells[group.name] = invented(group)
    results.save()
    path, picture = render(tmp_path, tmp_path)
    page = path.read_text()
    tables = [part for part in page.split("## ") if "|" in part]
    assert len(tables) == 4
    for group in settings.groups(settings.scale("full")):
        label = settings.LABELS[group.method]
        if group.what is not None:
            label += f", {group.setting}"
        for part in (tables[0], tables[1], tables[3]):
            assert f"| {label} |" in part
    opening = page.split("## Predictions")[0]
    for words in ("75.54 ±", "-.5142", "1.002", "20,000", "not better sampling"):
        assert words in opening
    assert "| 1.50 |" in tables[1]
    assert "76.36 ± 0.01" in tables[2]
    # .25 us a draw against 12.5 s for 20,000: 6.25 s for 10,000.
    assert "6.25 s" in page
    assert "2,500 times" in page
    # Half of 64 chains of 1000 draws; 12.5 s and a warm-up of 9 s.
    assert "| 32,000 |" in tables[1]
    assert "| 21.5, 9.0 of them warm-up |" in tables[3]
    assert settings.NOTES in page
    assert picture.exists()


def test_the_page_of_a_smaller_scale_has_its_settings(tmp_path):
    results = Results("covertype", "cpu", tmp_path / "covertype.json", {})
    for group in settings.groups(settings.scale("cpu")):
        results.cells[group.name] = invented(group)
    page = report.page(results)
    assert settings.NOTES not in page
    assert "Sizes are those of scale `cpu`" in page
    assert "3 hidden layers of 128 " in page and "300 iterations" in page
