"""The page of a fit: what it says is true, and it stands alone."""

import json
import re
from html.parser import HTMLParser

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import browser
import pushforward as pf
from pushforward.diagnostics.evaluation import Sample
from pushforward.diagnostics.tests.base import Evidence
from pushforward.errors import FileError, UsageError
from pushforward.networks import AffineMap
from pushforward.reporting import marginals
from pushforward.reporting.contents import MAX_ROWS, _moved, plain
from pushforward.reporting.cost import Purse
from pushforward.reporting.page import page
from pushforward.reporting.svg import Panel, span
from pushforward.sampler import Sampler

pytestmark = pytest.mark.once

RNG = np.random.default_rng(0)


def gaussian(dim=3, **options):
    def draw(key, n):
        return jax.random.normal(key, (n, dim))

    def log_density(x):
        return -0.5 * jnp.sum(x**2)

    return pf.Target(log_density, dim=dim, sample=draw, **options)


class Choice(eqx.Module):
    """A mixture of narrow Gaussians around given centres, all alike."""

    centres: jax.Array
    width: float = eqx.field(static=True, default=0.1)
    in_size: int = eqx.field(static=True, default=3)
    out_size: int = eqx.field(static=True, default=2)

    def __call__(self, z):
        which = jax.scipy.stats.norm.cdf(z[2]) * len(self.centres)
        which = jnp.minimum(which.astype(int), len(self.centres) - 1)
        return self.centres[which].astype(z.dtype) + self.width * z[:2]


def mixture(centres, width=0.1):
    """The mixture as a target with exact draws."""

    def log_density(x):
        far = jnp.sum((x[None] - centres) ** 2, axis=1) / (2 * width**2)
        return jax.nn.logsumexp(-far)

    def draw(key, n):
        at, noise = jax.random.split(key)
        which = jax.random.randint(at, (n,), 0, len(centres))
        return centres[which] + width * jax.random.normal(noise, (n, 2))

    return pf.Target(log_density, dim=2, sample=draw, modes=centres)


class Outline(HTMLParser):
    """What the browser would be made to ask for, and whether all tags are known."""

    def __init__(self, text):
        super().__init__()
        self.addresses, self.ids, self.rows = [], [], 0
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.rows += tag == "tr"
        if "id" in found:
            self.ids.append(found["id"])
        for name in ("src", "href", "action", "data", "srcset"):
            if name in found:
                self.addresses.append(found[name])


# Of one coordinate.


def test_errors_are_in_standard_deviations():
    reference = RNG.normal(3.0, 2.0, (20_000, 1))
    shifted = marginals.Errors.of(reference + 1.0, reference)
    np.testing.assert_allclose(shifted.errors, 0.5, rtol=0.02)
    # sup |Phi(x - 1/2) - Phi(x)| is at x = 1/4.
    exact = 2 * stats.norm.cdf(0.25) - 1
    np.testing.assert_allclose(shifted.distances, exact, atol=0.01)
    same = marginals.Errors.of(reference, reference)
    assert same.errors == 0 and same.distances == 0


def test_the_spread_of_heavy_tails_is_that_of_their_middle():
    cauchy = RNG.standard_cauchy((50_000, 1))
    np.testing.assert_allclose(marginals.spread(cauchy), 12.63 / 3.29, rtol=0.05)
    normal = RNG.normal(0, 3.0, (50_000, 1))
    np.testing.assert_allclose(marginals.spread(normal), 3.0, rtol=0.02)
    # Hardly ever anything but 0, and a constant.
    rare = np.where(np.arange(1000) < 10, 1.0, 0.0)[:, None]
    assert marginals.spread(rare) == rare.std() > 0
    assert marginals.spread(np.ones((10, 1))) == 1


def test_the_gap_is_that_of_kolmogorov_and_smirnov():
    x, y = RNG.normal(size=300), RNG.normal(0.3, 1.2, 500)
    gap = np.abs(marginals.ecdf_gap(x, y)).max()
    exact = stats.ks_2samp(x, y).statistic
    # SciPy looks at the draws too, where the gap is larger by at most one step.
    assert exact - 1 / 300 - 1 / 500 <= gap <= exact + 1e-12
    tied = np.repeat([0.0, 1.0], 50)
    assert np.abs(marginals.ecdf_gap(tied, tied)).max() == 0


def test_exact_draws_stay_in_the_band():
    n, m, d, times = 400, 600, 5, 300
    width = marginals.band(n, m, d)
    left = 0
    for _ in range(times):
        pairs = ((RNG.random(n), RNG.random(m)) for _ in range(d))
        left += any(np.abs(marginals.ecdf_gap(x, y)).max() > width for x, y in pairs)
    # 1 % are allowed; eleven of 300 would be a chance of 1e-4.
    assert left <= 11
    # A quarter of a standard deviation is not inside.
    x, y = RNG.normal(0.25, 1, 4000), RNG.normal(size=4000)
    assert np.abs(marginals.ecdf_gap(x, y)).max() > marginals.band(4000, 4000, 100)


# Pictures.


def test_a_line_is_broken_where_a_number_is_missing():
    panel = Panel((0, 2), (0, 1))
    panel.line([(0, 0), (1, float("nan")), (2, 1)], "ours")
    (path,) = re.findall(r'd="(M.*?)"', panel.marks[0])
    assert path.count("M") == 2 and "nan" not in path


def test_words_in_a_picture_are_escaped():
    text = Panel((0, 1), (0, 1), title='<script>"').render()
    assert "<script" not in text and "&lt;script&gt;" in text


def test_spans():
    assert span([]) == (0.0, 1.0)
    low, high = span([2.0, 2.0, float("inf")])
    assert low < 2.0 < high
    assert span([0.0, 1.0], 0.1) == (-0.1, 1.1)


# The page.


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def made(folder):
    """The page of a sampler whose third coordinate is off by half a deviation."""
    target = gaussian(names=("a", "b<c", "off"))
    network = AffineMap(3)
    sampler = Sampler.from_network(network, target=target)
    centre = jnp.array([0.0, 0.0, 0.5])
    sampler = eqx.tree_at(lambda s: s.preconditioner.centre, sampler, centre)
    path = pf.report(
        jax.random.key(0), target, sampler, folder / "off.html",
        n=500, max_evaluations=400_000, title="A & B",
    )  # fmt: skip
    return path, json.loads(path.with_suffix(".json").read_text())


def test_the_page_stands_alone(made):
    path, _ = made
    text = path.read_text()
    outline = Outline(text)
    assert len(set(outline.ids)) == len(outline.ids)
    inside = {f"#{name}" for name in outline.ids}
    assert set(outline.addresses) <= inside | {"data:,"}
    assert not re.search(r"https?:|url\(|@import", text)
    assert len(text) < 1_500_000
    assert "default-src 'none'" in text
    # In this order.
    names = ("rests on", "not be determined", "Parameters", "Distributions", "Pairs",
             "Log density", "Importance weights", "Cost", "Made with")  # fmt: skip
    places = [text.index(f"{name}</h2>") for name in names]
    assert places == sorted(places)
    assert "A &amp; B" in text and "b&lt;c" in text and "b<c" not in text


def test_the_wrong_parameter_comes_first(made):
    path, contents = made
    assert contents["verdict"]["outcome"] == "failed"
    columns, rows = contents["parameters"]["columns"], contents["parameters"]["rows"]
    first = dict(zip(columns, rows[0], strict=True))
    assert first["parameter"] == "off"
    assert abs(first["error"] - 0.5) < 0.15 and first["reference's own"] < 0.2
    assert abs(first["mean"] - 0.5) < 0.2 and abs(first["reference mean"]) < 0.1
    curves, width = contents["ecdf"]["curves"], contents["ecdf"]["band"]
    assert curves[0]["name"] == "off"
    assert max(map(abs, curves[0]["draws"])) > width
    assert max(map(abs, curves[0]["reference"])) < width
    assert contents["pairs"]["names"][0] == "off"
    text = path.read_text()
    assert text.index("failed</b>") < text.index("<h2>")


def test_moves_bring_the_draws_back(made):
    means = made[1]["log_density"]["means"]
    # E log q is -3/2 of exact draws, and an eighth less of these.
    assert abs(means["reference"] + 1.5) < 0.2
    assert abs(means["moved"] - means["reference"]) < 0.3
    for shares in made[1]["log_density"]["shares"].values():
        assert sum(shares) == pytest.approx(1)


def test_moves_leave_exact_draws_where_they_are():
    """Even where there are hardly more of them than coordinates."""
    dim, n = 60, 64
    target = gaussian(dim)
    x = np.asarray(jax.random.normal(jax.random.key(0), (4 * n, dim)), np.float64)
    sample, _ = Sample.of(np.random.default_rng(0), target, x[:n])
    evidence = Evidence(target, sample, near=x[n:])
    moved = _moved(jax.random.key(1), evidence, Purse(None, 0), [])
    before, after = (-0.5 * np.sum(points**2, axis=1) for points in (x[:n], moved))
    # The sum of 60 squares has the standard deviation sqrt(120).
    assert abs(np.mean(after - before)) < 4 * np.sqrt(120 / 4 / n)
    assert not np.allclose(x[:n], moved)


def test_weights_and_the_normaliser(made):
    weights = made[1]["weights"]
    exact = 1.5 * np.log(2 * np.pi)
    assert abs(weights["log_z"] - exact) < 5 * weights["log_z_se"]
    # 1 / E_p[(q / p)^2] = exp(-1/4).
    assert weights["ess_per_draw"] == pytest.approx(np.exp(-0.25), abs=0.04)


def test_what_was_left_out_is_said(made):
    path, contents = made
    (left,) = (each for each in contents["omitted"] if "NUTS" in each)
    assert left in path.read_text().replace("&#x27;", "'")
    assert contents["cost"]["nuts"] is None


def test_every_number_of_the_page_is_in_the_json(made, folder):
    path, contents = made
    assert page(contents) == path.read_text()
    assert json.loads(json.dumps(contents, allow_nan=False)) == contents


def test_plain():
    assert plain({"a": np.array([1.0, np.nan]), 2: (np.float32(0.5), np.inf)}) == {
        "a": [1.0, None],
        "2": [0.5, None],
    }


def test_many_parameters(made):
    """The table is cut, which the page says, and the file stays small."""
    contents = json.loads(json.dumps(made[1]))
    row = contents["parameters"]["rows"][0]
    rows = [[f"x[{i}]", *row[1:]] for i in range(MAX_ROWS)]
    contents["parameters"]["rows"] = rows
    text = page(contents)
    assert len(text) < 1_500_000
    assert Outline(text).rows > MAX_ROWS
    assert "Printed, the table ends" in text


def test_a_missing_mode_is_on_the_page(folder):
    centres = jnp.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0], [4.0, 4.0]])
    target = mixture(centres)
    sampler = Sampler.from_network(Choice(centres[:3]))
    path = pf.report(
        jax.random.key(1), target, sampler, folder / "modes.html",
        n=400, max_evaluations=200_000,
    )  # fmt: skip
    contents = json.loads(path.with_suffix(".json").read_text())
    first = contents["modes"]["rows"][0]
    assert first["centre"] == [4.0, 4.0]
    low, share, high = first["draws"]
    assert low == share == 0 and 0 < high < 0.02
    low, share, high = first["reference"]
    assert low < 0.25 < high
    assert "the mode near (4, 4) holds" in path.read_text()
    assert any("own density" in each for each in contents["omitted"])


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        ({"path": "a.pdf"}, UsageError, "written as .html"),
        ({"path": "none/a.html"}, FileError, "there is no folder"),
        ({"fit": 5}, UsageError, "or a Sampler, not"),
        ({"run": "nowhere"}, FileError, "There is no run in"),
    ],
)
def test_bad_input(change, error, sentence, folder, monkeypatch):
    monkeypatch.chdir(folder)
    target = gaussian(2)
    given = {"fit": Sampler.from_network(AffineMap(2)), "path": "a.html", **change}
    with pytest.raises(error, match=sentence):
        pf.report(jax.random.key(0), target, **given)
    assert not (folder / "a.html").exists()


def test_a_fit_writes_its_own_page(folder):
    """With the course of its training; the run on disk gives the same page."""
    target, out = gaussian(2), folder / "run"
    method = pf.methods.Gaussian()
    fit = pf.fit(jax.random.key(0), target, method, steps=40, out=out, progress=False)
    few = {"n": 200, "max_evaluations": 100_000}
    path = fit.report(folder / "fit.html", **few)
    contents = json.loads(path.with_suffix(".json").read_text())
    training = contents["training"]
    assert training["message"] == fit.message
    (stage,) = training["stages"]
    rows = [row for row in fit.history.rows if "loss" in row]
    assert stage["curves"]["loss"] == [[r["step"], r["loss"]] for r in rows]
    assert contents["cost"]["fit_evaluations"] == fit.evaluations
    again = pf.report(
        jax.random.key(0), target, pf.load(out, target), folder / "again.html",
        run=out, **few,
    )  # fmt: skip
    stored = json.loads(again.with_suffix(".json").read_text())
    assert stored["training"] == training
    assert stored["cost"]["fit_evaluations"] == fit.evaluations
    assert stored["made_with"]["fit_key"] == contents["made_with"]["fit_key"] == [0, 0]


@pytest.mark.slow
def test_the_comparison_with_nuts(folder):
    target = gaussian(2)
    fit = pf.fit(jax.random.key(0), target, pf.methods.Gaussian(), progress=False)
    path = fit.report(folder / "nuts.html", n=500)
    nuts = json.loads(path.with_suffix(".json").read_text())["cost"]["nuts"]
    assert nuts["agree"] and nuts["divergences"] == 0
    # 1,200 draws are worth about as many, at a few leapfrog steps each.
    assert 300 < nuts["ess"] <= 1200 * 3
    assert 1 <= nuts["evaluations_per_effective_draw"] < 30
    saved = fit.evaluations - nuts["warmup_evaluations"]
    each = nuts["evaluations_per_effective_draw"]
    assert nuts["break_even_draws"] == max(int(np.ceil(saved / each)), 0)


@pytest.mark.slow
@pytest.mark.skipif(browser.find() is None, reason="there is no Chromium here")
def test_in_a_browser(folder, tmp_path):
    """No complaint, no request to another place; sorting and searching by clicks."""
    target = pf.targets.get("ring")
    fit = pf.fit(jax.random.key(0), target, steps=600, progress=False)
    path = fit.report(folder / "ring.html")
    with browser.tab() as tab:
        for width, dark in ((390, False), (1280, True)):
            tab.open(path, width=width, dark=dark)
            assert tab.complaints == []
            assert tab.requests == [path.resolve().as_uri()]
            inner = tab.run("document.documentElement.scrollWidth")
            assert inner <= width, "the page is wider than the screen"
            assert tab.run("document.querySelectorAll('svg').length") > 8
        cells = "[...document.querySelectorAll('#parameter-table tbody tr')]"
        means = (
            f"{cells}.map(row => Number(row.cells[3].textContent.replace('−', '-')))"
        )
        head = "document.querySelectorAll('#parameter-table th button')[3]"
        tab.click(head)
        down = tab.run(means)
        assert down == sorted(down, reverse=True)
        tab.click(head)
        assert tab.run(means) == sorted(down)
        tab.click("document.getElementById('search')")
        name = target.names[0]
        tab.type(name)
        left = (
            f"{cells}.filter(row => !row.hidden).map(row => row.cells[0].textContent)"
        )
        assert tab.run(left) == [n for n in tab.run(
            f"{cells}.map(row => row.cells[0].textContent)") if name in n]  # fmt: skip
        assert tab.complaints == []
