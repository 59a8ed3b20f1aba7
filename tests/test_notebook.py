"""What a notebook shows of a target, a fit and a verdict."""

import re

import jax.numpy as jnp
import pytest

import pushforward as pf
from pushforward.diagnostics import Outcome, TestResult
from pushforward.training.history import History

pytestmark = pytest.mark.once


def cells(shown):
    """The table as rows of text, and that every tag that is opened is closed."""
    opened, closed = (sorted(re.findall(p, shown)) for p in (r"<(\w+)", r"</(\w+)"))
    assert opened == closed
    rows = re.findall(r"<tr>(.*?)</tr>", shown)
    return [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in rows]


def test_a_target():
    target = pf.Target(
        lambda p: -p["a<b"] - jnp.sum(p["x"] ** 2),
        example={"a<b": 1.0, "x": jnp.zeros(3)},
        constraints={"a<b": "positive"},
    )
    shown = target._repr_html_()
    assert cells(shown)[1:] == [
        ["a&lt;b", "scalar", "positive"],
        ["x", "(3,)", "real"],
    ]
    assert "4 coordinates, without exact draws" in shown
    many = pf.Target(
        lambda p: -sum(p.values()), example={f"p{i}": 1.0 for i in range(40)}
    )
    assert cells(many._repr_html_())[-1][0] == "and 28 more"
    assert len(many._repr_html_()) < 3000


def test_a_verdict():
    finding = TestResult("MMD", Outcome.FAILED, "a < b", 0.5, None, 1e-5, 0.01)
    verdict = pf.Verdict(
        Outcome.FAILED, "No.", (finding,), "exact draws", 2000, 2000, 10
    )
    shown = verdict._repr_html_()
    assert "<b>failed</b>: No." in shown and "2,000 draws against exact draws" in shown
    assert cells(shown)[1] == ["failed", "MMD", "0.5", "", "1e-05", "a &lt; b"]


def test_a_fit():
    sampler = pf.Sampler.from_network(pf.networks.AffineMap(2))
    fit = pf.Fit(
        sampler=sampler,
        status=pf.Status.FINISHED,
        history=History([{"step": 1, "loss": 0.25, "seconds": 1.0}]),
        config={
            "method": {"name": "kl"},
            "target": {"kind": "Target", "dim": 2},
            "steps": 5,
        },
        evaluations=1000,
        doubts=("it may not fall",),
        steps=5,
        planned=5,
        nonfinite_steps=0,
        seconds=1.0,
    )
    shown = fit._repr_html_()
    assert "<b>finished</b>: Finished 5 steps in 1 s." in shown
    assert ["loss", "0.25"] in cells(shown)
    assert ["doubt", "it may not fall"] in cells(shown)
    with pytest.raises(pf.errors.UsageError, match="does not hold its target"):
        fit.report("a.html")
