"""The callback of a training: what it sees, what it may answer, how it stops a run."""

import json
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pushforward as pf
from pushforward import _io, methods
from pushforward.errors import UnfinishedWarning, UsageError
from pushforward.training.callback import read_answer
from pushforward.training.rundir import STATE_FORMAT
from pushforward.training.session import require_callback

TINY = methods.Gaussian(steps=40, batch_size=64, particles=256)
KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def target():
    return pf.targets.get("gaussian")


def arrays(out):
    return _io.read(out / "state.safetensors", STATE_FORMAT)[1]


def assert_same_run(a, b):
    ours, theirs = arrays(a), arrays(b)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)
    rows = [
        [
            {k: v for k, v in json.loads(line).items() if k != "seconds"}
            for line in (out / "metrics.jsonl").read_text().splitlines()
        ]
        for out in (a, b)
    ]
    assert rows[0] == rows[1]


def test_its_numbers_join_the_history(target, tmp_path):
    seen = []

    def look(event):
        seen.append(event.step)
        assert event.target is target and event.metrics.keys() == {"loss"}
        assert event.history["step"][-1] == event.step
        draws = event.sampler.sample(jax.random.key(0), 100)
        return {"width": jnp.std(draws)}

    how = {"progress": False, "callback": look, "callback_every": 15}
    fit = pf.fit(KEY, target, TINY, out=tmp_path / "r", **how)
    assert seen == [15, 30]
    rows = [row for row in fit.history.rows if "width" in row]
    assert [row["step"] for row in rows] == [15, 30]
    # A longer run keeps what was seen before.
    longer = pf.fit(KEY, target, TINY, steps=60, resume=True, out=tmp_path / "r", **how)
    assert seen == [15, 30, 45, 60]
    again = [row for row in longer.history.rows if "width" in row]
    assert again[:2] == rows and len(again) == 4
    many = pf.fit_many(jax.random.split(KEY, 2), target, TINY, **how)
    widths = [[r["width"] for r in f.history.rows if "width" in r] for f in many]
    assert len(widths[0]) == 2 and widths[0] != widths[1]


def test_it_changes_no_bit(target):
    plain = pf.fit(KEY, target, TINY, progress=False)
    watched = pf.fit(
        KEY, target, TINY, progress=False, callback=lambda event: {}, callback_every=7
    )
    draws = [f.sampler.sample(jax.random.key(1), 10) for f in (plain, watched)]
    np.testing.assert_array_equal(*draws)


def early_stopping(event):
    """Stops where twice in a row the number was not the lowest; it rises from 20 on."""
    number = abs(event.step - 20)
    rows = [row["number"] for row in event.history.rows if "number" in row]
    lowest = min([number, *rows])
    stop = len(rows) >= 2 and lowest not in (number, rows[-1])
    return {"number": number, "stop": stop}


def test_early_stopping(target, tmp_path):
    how = {"progress": False, "callback_every": 5}
    out, whole = tmp_path / "early", tmp_path / "whole"
    fit = pf.fit(KEY, target, TINY, out=out, callback=early_stopping, **how)
    assert fit.status is pf.Status.STOPPED and fit.finished
    assert (fit.steps, fit.planned) == (30, 40)
    assert fit.message.startswith("The callback stopped the training after 30 of 40")
    assert fit.history["number"][-1] == 10 and fit.history.steps == 30
    assert pf.load(out).dim == 2
    # It stays stopped, ...
    before = arrays(out)
    again = pf.fit(
        KEY, target, TINY, out=out, callback=early_stopping, resume=True, **how
    )
    assert again.status is pf.Status.STOPPED and again.steps == 30
    assert again.evaluations == fit.evaluations
    assert all(np.array_equal(before[k], v) for k, v in arrays(out).items())
    # ... and without the callback it goes on, as if it had never been stopped.
    rest = pf.fit(KEY, target, TINY, out=out, resume=True, **how)
    assert rest.status is pf.Status.FINISHED and rest.steps == 40
    pf.fit(
        KEY, target, TINY, out=whole, progress=False, callback_every=5,
        callback=lambda e: early_stopping(e)["number"] > 20,
    )  # fmt: skip
    for name, value in arrays(whole).items():
        np.testing.assert_array_equal(value, arrays(out)[name], err_msg=name)


def test_at_the_last_step_there_is_nothing_to_stop(target):
    fit = pf.fit(
        KEY, target, TINY, progress=False, callback=lambda e: True, callback_every=40
    )
    assert fit.status is pf.Status.FINISHED


def test_one_seed_of_many_is_stopped(target):
    seen = {0: [], 1: [], 2: []}

    def stop_one(event):
        seen[event.seed].append(np.asarray(event.sampler.network.mean))
        return event.seed == 1 and event.step >= 20

    how = {"progress": False, "callback": stop_one, "callback_every": 10}
    fits = pf.fit_many(jax.random.split(KEY, 3), target, TINY, **how)
    assert [f.status.name for f in fits] == ["FINISHED", "STOPPED", "FINISHED"]
    assert [f.steps for f in fits] == [40, 20, 40]
    assert [len(s) for s in seen.values()] == [4, 2, 4]
    np.testing.assert_array_equal(fits[1].sampler.network.mean, seen[1][-1])
    assert fits[1].history.steps == 20 and fits[0].history.steps == 40
    assert fits[0].evaluations - fits[1].evaluations == 20 * 64
    early = pf.fit_many(
        jax.random.split(KEY, 2), target, TINY, progress=False, callback_every=10,
        callback=lambda event: np.bool_(True),
    )  # fmt: skip
    assert [f.steps for f in early] == [10, 10]


def test_every_seed_sees_its_own_target(target):
    targets = [target, pf.targets.get("squiggle")]
    names = {}

    def look(event):
        names[event.seed] = event.target.names, event.sampler.names

    pf.fit_many(
        jax.random.split(KEY, 2), targets, methods.Gaussian(steps=2, batch_size=8),
        progress=False, callback=look, callback_every=2,
    )  # fmt: skip
    assert all(own == drawn for own, drawn in names.values())


def test_what_it_raises_leaves_a_run_that_resumes_to_the_same_bits(target, tmp_path):
    calls = []

    def fragile(event):
        calls.append(event.step)
        if len(calls) == 3:
            raise RuntimeError("no space left")
        return {"number": event.step}

    how = {"progress": False, "callback": fragile, "callback_every": 10}
    with pytest.raises(RuntimeError, match="no space left"):
        pf.fit(KEY, target, TINY, out=tmp_path / "part", **how)
    pf.fit(KEY, target, TINY, out=tmp_path / "part", resume=True, **how)
    # The call that failed is made again.
    assert calls == [10, 20, 30, 30, 40]
    pf.fit(KEY, target, TINY, out=tmp_path / "whole", **how)
    assert_same_run(tmp_path / "part", tmp_path / "whole")


@pytest.mark.parametrize("nested", [False, True])
def test_ctrl_c_inside_it_behaves_as_outside(target, tmp_path, nested):
    def interrupted(event):
        if nested:
            # A training inside the callback, which sees the Ctrl-C first.
            def inside(_):
                signal.raise_signal(signal.SIGINT)

            with pytest.warns(UnfinishedWarning):
                pf.fit(
                    KEY, target, TINY, progress=False, callback=inside, callback_every=1
                )
        else:
            signal.raise_signal(signal.SIGINT)
        return {"number": 1}

    def calm(event):
        return {"number": 1}

    how = {"progress": False, "callback_every": 20}
    with pytest.warns(UnfinishedWarning, match="after 20 of 40 steps"):
        part = pf.fit(
            KEY, target, TINY, out=tmp_path / "part", callback=interrupted, **how
        )
    assert part.status is pf.Status.INTERRUPTED and part.steps == 20
    assert part.history["number"][-1] == 1
    pf.fit(KEY, target, TINY, out=tmp_path / "part", callback=calm, resume=True, **how)
    pf.fit(KEY, target, TINY, out=tmp_path / "whole", callback=calm, **how)
    assert_same_run(tmp_path / "part", tmp_path / "whole")


class Unshown:
    """Something that has no text."""

    def __repr__(self):
        raise ValueError


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (0.5, "or True to stop the training; it returned 0.5"),
        ("stop", "it returned 'stop'"),
        ({"width": "wide"}, "'width' in what the callback returned must be a number"),
        ({"step": 3}, "cannot call a number 'step'"),
        ({"a": 10**400}, "'a' in what the callback returned must be a number"),
        ({"a": Unshown()}, "must be a number, not a Unshown"),
        ({"\ud800": 1.0}, "cannot call a number"),
        ({"stop": 1.0}, "'stop' in what the callback returned must be True or False"),
    ],
)
def test_answers_that_are_refused(answer, sentence):
    with pytest.raises(UsageError, match=sentence):
        read_answer(answer)


def test_an_answer_is_refused_in_a_fit(target):
    with pytest.raises(UsageError, match="it returned 'stop'"):
        pf.fit(
            KEY, target, TINY, progress=False, callback=lambda e: "stop",
            callback_every=1,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"callback_every": 0}, "callback_every must be a whole number"),
        ({"watch": print}, "watch= and watch_every= are now callback= and"),
        ({"watch_every": 3}, "watch= and watch_every= are now callback= and"),
    ],
)
def test_nothing_is_written_before_the_arguments_are_looked_at(
    target, tmp_path, options, sentence
):
    out = tmp_path / "new"
    with pytest.raises(UsageError, match=sentence):
        pf.fit(KEY, target, TINY, out=out, progress=False, **options)
    assert not out.exists()
    with pytest.raises(UsageError, match=sentence):
        pf.fit_many(jax.random.split(KEY), target, TINY, progress=False, **options)
    with pytest.raises(UsageError, match=sentence):
        pf.train(KEY, np.zeros(3), TINY, out=out, progress=False, **options)


def test_what_cannot_be_called():
    # Not through `fit`, whose annotations refuse it here.
    with pytest.raises(UsageError, match="a function of one event, not a int"):
        require_callback(3, 10, None, None)
