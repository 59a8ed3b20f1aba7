"""The engine: resuming, interrupting, skipping, tracing nothing twice."""

import dataclasses
import json
import signal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pushforward as pf
from pushforward import methods, networks
from pushforward.errors import FileError, TrainingError, UnfinishedWarning, UsageError
from pushforward.training import api, loop, runner
from pushforward.training.door import admit
from wrapped import GAUSSIAN as TINY_GAUSSIAN
from wrapped import AbstractWrapper

TINY_DFT = methods.DFT(
    network=networks.residual(8, 1),
    steps=40,
    batch_size=16,
    particles=64,
    score_warmup=5,
    score_steps=1,
)


def poisoned(state, poison):
    """The state with a number added to its means."""
    mean = state.network.mean + poison.astype(state.network.mean.dtype)
    return eqx.tree_at(lambda s: s.network.mean, state, mean)


def log_density(x):
    return -0.5 * jnp.sum((x - 1.0) ** 2) - 0.1 * jnp.sum(x**4)


@pytest.fixture(scope="module")
def target():
    return pf.Target(log_density, dim=2)


def interrupt_after(monkeypatch, calls):
    """Ctrl-C during the given call of the compiled loop."""
    advance, made = runner.advance, []

    def counted(*arguments):
        made.append(1)
        if len(made) == calls:
            signal.raise_signal(signal.SIGINT)
        return advance(*arguments)

    monkeypatch.setattr(runner, "advance", counted)


def state_bytes(path):
    return (path / "state.safetensors").read_bytes()


def arrays_of(path):
    from pushforward import _io
    from pushforward.training.rundir import STATE_FORMAT

    return _io.read(path / "state.safetensors", STATE_FORMAT)[1]


def assert_same_bits(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def test_ctrl_c_leaves_a_run_that_resumes_to_the_same_bits(
    target, tmp_path, monkeypatch
):
    key = jax.random.key(3)
    whole = pf.fit(key, target, TINY_DFT, out=tmp_path / "a", progress=False)
    with monkeypatch.context() as patch:
        interrupt_after(patch, 6)
        with pytest.warns(UnfinishedWarning) as warned:
            part = pf.fit(key, target, TINY_DFT, out=tmp_path / "b", progress=False)
    assert part.status is pf.Status.INTERRUPTED and not part.finished
    # Said once, and where it can be seen: at the line of the user that called `fit`.
    assert [str(w.message) for w in warned] == [part.message]
    assert 0 < part.steps < 40
    assert part.message == (
        f"Stopped by Ctrl-C after {part.steps} of 40 steps; what it had learnt by then "
        f"is in {tmp_path / 'b'}: to continue, repeat the call with resume=True "
        "(--resume)."
    )
    assert not (tmp_path / "b" / "sampler.safetensors").exists()
    rest = pf.fit(
        key, target, TINY_DFT, out=tmp_path / "b", resume=True, progress=False
    )
    assert rest.finished
    assert_same_bits(arrays_of(tmp_path / "a"), arrays_of(tmp_path / "b"))
    np.testing.assert_array_equal(whole.history["fisher"], rest.history["fisher"])
    draws = [f.sampler.sample(jax.random.key(0), 10) for f in (whole, rest)]
    np.testing.assert_array_equal(*draws)


def test_what_ctrl_c_leaves_of_a_run_without_a_directory(target, monkeypatch):
    interrupt_after(monkeypatch, 3)
    keys = jax.random.split(jax.random.key(3), 2)
    with pytest.warns(
        UnfinishedWarning, match="by then is returned, but only"
    ) as warned:
        parts = pf.fit_many(keys, target, TINY_GAUSSIAN, progress=False)
    assert {str(w.message) for w in warned} == {part.message for part in parts}
    assert len(warned) == 1
    assert all(part.status is pf.Status.INTERRUPTED for part in parts)


@pytest.mark.parametrize(
    ("method", "what"),
    [(methods.DFT, "DFT itself, which has not been called."), ("dft", "a str.")],
)
def test_what_is_no_method(method, what):
    # Not through `fit`, whose annotations refuse it here.
    with pytest.raises(UsageError, match=rf"such as methods.DFT\(\), and it is {what}"):
        api._method(method, None, None)


def test_a_second_ctrl_c_interrupts_as_usual(target, monkeypatch):
    def twice(*arguments):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(runner, "advance", twice)
    # Not always Python's own: a shell starts its background jobs with SIGINT ignored.
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        pf.fit(jax.random.key(0), target, TINY_GAUSSIAN, progress=False)
    assert signal.getsignal(signal.SIGINT) is before


def test_metric_lines_later_than_the_state_are_cut(target, tmp_path):
    key, out = jax.random.key(3), tmp_path / "run"
    pf.fit(key, target, TINY_GAUSSIAN, out=out, progress=False)
    lines = (out / "metrics.jsonl").read_text()
    with open(out / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": 99, "stage": "gaussian"}) + "\n")
    again = pf.fit(key, target, TINY_GAUSSIAN, out=out, resume=True, progress=False)
    assert (out / "metrics.jsonl").read_text() == lines
    assert again.history["step"][-1] == 40


def test_a_sampler_that_was_saved_by_hand_is_not_deleted(target, tmp_path):
    """Under the library's own name for it, in a directory that holds no run."""
    path = tmp_path / "sampler.safetensors"
    pf.Sampler.from_network(networks.AffineMap(2)).save(path)
    before = path.read_bytes()
    with pytest.raises(FileError, match=r"holds sampler.safetensors and no run"):
        pf.fit(jax.random.key(0), target, TINY_GAUSSIAN, out=tmp_path, progress=False)
    assert list(tmp_path.iterdir()) == [path] and path.read_bytes() == before


def test_more_steps_go_on_and_fewer_are_refused(target, tmp_path):
    key, out = jax.random.key(3), tmp_path / "run"
    options = {"out": out, "progress": False}
    pf.fit(key, target, TINY_GAUSSIAN, **options)
    longer = pf.fit(key, target, TINY_GAUSSIAN, steps=60, resume=True, **options)
    assert longer.finished and longer.history["step"][-1] == 60
    before = state_bytes(out)
    with pytest.raises(FileError, match="cannot be cut to 30"):
        pf.fit(key, target, TINY_GAUSSIAN, steps=30, resume=True, **options)
    assert state_bytes(out) == before


def refused(out, sentence, *arguments, **options):
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    with pytest.raises(FileError, match=sentence):
        pf.fit(*arguments, out=out, progress=False, **options)
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before


def test_a_resume_refuses_every_other_change(target, tmp_path):
    key, out = jax.random.key(3), tmp_path / "run"
    pf.fit(key, target, TINY_GAUSSIAN, out=out, progress=False)
    refused(out, "already holds a run", key, target, TINY_GAUSSIAN)
    other = methods.Gaussian(steps=40, batch_size=16, particles=64, optimiser=0.5)
    refused(out, "learning_rate", key, target, other, resume=True)
    refused(out, "method 'gaussian'", key, target, TINY_DFT, resume=True)
    refused(out, "another key", jax.random.key(4), target, TINY_GAUSSIAN, resume=True)
    edited = pf.Target(lambda x: log_density(x) - 0.01 * x[0] ** 2, dim=2)
    refused(out, "not the one", key, edited, TINY_GAUSSIAN, resume=True)
    with pytest.raises(UsageError, match="needs out="):
        pf.fit(key, target, TINY_GAUSSIAN, resume=True, progress=False)


def test_a_run_that_is_older_than_a_field_goes_on(target, tmp_path):
    key, out = jax.random.key(3), tmp_path / "run"
    pf.fit(key, target, TINY_DFT, out=out, progress=False)
    file = out / "config.json"
    config = json.loads(file.read_text())
    del config["method"]["objective"]["noise"]["power"]
    del config["checksum"]
    file.write_text(json.dumps(config))
    steps = TINY_DFT.steps + 4
    longer = pf.fit(
        key, target, TINY_DFT, steps=steps, out=out, resume=True, progress=False
    )
    assert longer.finished and longer.history["step"][-1] == steps
    assert longer.message.startswith(f"Finished {steps} steps in")
    assert "The first 5 steps trained the score network alone." in longer.message
    assert len(str(longer).splitlines()) <= 5
    noise = dataclasses.replace(TINY_DFT.objective.noise, power=1.0)
    changed = eqx.tree_at(lambda m: m.objective.noise, TINY_DFT, noise)
    refused(out, "with objective.noise.power=2.0", key, target, changed, resume=True)


def test_a_resume_keeps_the_steps_of_the_run(target, tmp_path):
    """Those of `fit(steps=...)`, where neither it nor the method asks for others."""
    key, options = jax.random.key(3), {"out": tmp_path / "run", "progress": False}
    pf.fit(key, target, TINY_GAUSSIAN, steps=50, **options)
    again = pf.fit(key, target, TINY_GAUSSIAN, resume=True, **options)
    assert again.history["step"][-1] == 50
    longer = TINY_GAUSSIAN.with_sizes(steps=60)
    again = pf.fit(key, target, longer, resume=True, **options)
    assert again.history["step"][-1] == 60
    short = {"steps": 45, "resume": True}
    refused(tmp_path / "run", "cut to 45", key, target, TINY_GAUSSIAN, **short)


@pytest.mark.parametrize("damage", ["truncated", "foreign", "newer", "config"])
def test_damaged_runs_are_refused_and_left_alone(target, tmp_path, damage):
    key, out = jax.random.key(3), tmp_path / "run"
    pf.fit(key, target, TINY_GAUSSIAN, out=out, progress=False)
    state = out / "state.safetensors"
    data = state.read_bytes()
    sentence = "truncated or is not"
    if damage == "truncated":
        state.write_bytes(data[: len(data) // 2])
    elif damage == "foreign":
        state.write_bytes(b"PK\x03\x04 something else")
    elif damage == "newer":
        # The header's length must not change.
        state.write_bytes(data.replace(b'\\"format\\": 2', b'\\"format\\": 9', 1))
        sentence = "newer pushforward"
    else:
        (out / "config.json").write_text("{")
        sentence = "damaged"
    refused(out, sentence, key, target, TINY_GAUSSIAN, resume=True)


def test_nothing_is_traced_twice(tmp_path):
    traces = []

    def counted(x):
        traces.append(1)
        return log_density(x)

    target = pf.Target(counted, dim=2)
    fitted = pf.fit(jax.random.key(0), target, TINY_DFT, progress=False)
    fitted.sampler.sample(jax.random.key(1), 100)
    # The examination reads the function anew, on shapes alone: that is its point.
    count = len(traces)
    admit(jax.random.key(0), target)
    examined = len(traces) - count
    assert examined <= 3
    # A second fit of the same kind, with another key and another number of steps.
    again = pf.fit(jax.random.key(1), target, TINY_DFT, steps=300, progress=False)
    again.sampler.sample(jax.random.key(1), 1000)
    assert again.finished
    assert len(traces) == count + 2 * examined


def test_a_program_for_draws_is_compiled_once(target, tmp_path, caplog):
    """Once for each shape of `sample`; streams of blocks are one program."""
    fitted = pf.fit(jax.random.key(0), target, TINY_GAUSSIAN, progress=False)
    few = fitted.sampler.sample(jax.random.key(1), 100)
    many = fitted.sampler.sample(jax.random.key(1), 40_000)
    fitted.sampler.stream(jax.random.key(1), 40_000, tmp_path / "a.npy")
    with jax.log_compiles(), caplog.at_level("WARNING"):
        fitted.sampler.sample(jax.random.key(2), 100)
        fitted.sampler.stream(jax.random.key(2), 60_000, tmp_path / "b.npy")
    assert not [r for r in caplog.records if "Compiling" in r.getMessage()]
    # The first draws of a larger n are those of a smaller one.
    np.testing.assert_array_equal(few, many[:100])


class Poisoned(eqx.Module):
    """A density that stops being finite where the draws of a seed may wander."""

    limit: jax.Array

    def __call__(self, x):
        poison = jnp.where(x[1] > self.limit, jnp.nan, 0.0)
        return -0.5 * jnp.sum(x**2) + poison * x[1]


def test_persistent_nan_stops_the_run_and_names_the_coordinate(tmp_path):
    # An initialisation avoids the points of no density; the draws of KL, which has to
    # have a score at each of them, cannot.
    target = pf.Target(Poisoned(jnp.array(2.0)), dim=2, names=("a", "b"))
    method = methods.KL(
        network=networks.residual(8, 1),
        steps=200,
        batch_size=4096,
        particles=64,
        score_warmup=1,
        score_steps=1,
    )
    out = tmp_path / "run"
    with pytest.raises(TrainingError, match="coordinate 'b'") as error:
        pf.fit(jax.random.key(0), target, method, out=out, progress=False)
    assert "\n" not in str(error.value)
    assert (out / "state.safetensors").exists()
    kept = pf.fit(jax.random.key(0), target, method, throw=False, progress=False)
    assert kept.status is pf.Status.NONFINITE and not kept.finished
    assert "coordinate 'b'" in kept.reason and kept.reason in kept.message


def test_a_seed_that_breaks_is_frozen_and_the_others_go_on(target, monkeypatch):
    class Fragile(AbstractWrapper):
        """Goes non-finite for those seeds whose key says so."""

        def step(self, key, target, state):
            state, info = self.inner.step(key, target, state)
            broken = state.network.mean[0] > 0
            poison = jnp.where(broken & (state.clock.step > 10), jnp.nan, 0.0)
            return poisoned(state, poison), info

    symmetric = pf.Target(lambda x: -0.5 * jnp.sum(x**2) - jnp.sum(x**4), dim=2)
    keys = jax.random.split(jax.random.key(5), 6)
    method = Fragile().with_sizes(steps=300)
    fits = pf.fit_many(keys, symmetric, method, progress=False)
    frozen = [f for f in fits if f.status is pf.Status.FROZEN]
    alive = [f for f in fits if f.finished]
    assert frozen and alive and len(frozen) + len(alive) == 6
    for fitted in fits:
        draws = fitted.sampler.sample(jax.random.key(0), 100)
        assert np.isfinite(draws).all()


class Overheated(AbstractWrapper):
    """Goes non-finite early in its schedule, where the learning rate is high."""

    def step(self, key, target, state):
        state, info = self.inner.step(key, target, state)
        hot = (state.clock.step > 10) & (state.clock.progress < 0.3)
        return poisoned(state, jnp.where(hot, jnp.nan, 0.0)), info


def test_training_that_is_stuck_goes_back_and_lowers_its_rate(target):
    method = Overheated().with_sizes(steps=100)
    fit = pf.fit(jax.random.key(0), target, method, progress=False)
    # From step 10 on, once: a third of the 90 steps that are left are left out.
    assert fit.finished and fit.steps == 100
    assert fit.nonfinite_steps == loop.RECOVERY
    (again,) = pf.fit_many(jax.random.key(0)[None], target, method, progress=False)
    assert again.finished and again.nonfinite_steps == loop.RECOVERY


class Hopeless(AbstractWrapper):
    """No step is ever finite."""

    def step(self, key, target, state):
        state, info = self.inner.step(key, target, state)
        return poisoned(state, jnp.asarray(jnp.nan)), info


def test_what_never_made_a_step_is_not_finished(target, tmp_path):
    """Though it gave up before it had made a hundred."""
    options = {"progress": False, "out": tmp_path / "run"}
    method = Hopeless().with_sizes(steps=30)
    with pytest.raises(TrainingError, match="after 30 of 30 steps: the last of them"):
        pf.fit(jax.random.key(0), target, method, **options)
    assert not (tmp_path / "run" / "sampler.safetensors").exists()
    keys = jax.random.split(jax.random.key(0), 2)
    fits = pf.fit_many(keys, target, method, progress=False)
    assert [f.status for f in fits] == [pf.Status.FROZEN] * 2


def test_programs_of_earlier_densities_are_let_go(monkeypatch):
    from pushforward import _programs
    from pushforward.training import loop

    kept = jax.jit(lambda x: x + 1)
    kept(1.0)
    monkeypatch.setattr(_programs, "KEPT", 2)
    _programs.release()

    def count():
        return loop.advance._cached._cache_size()

    def fit(width):
        other = pf.Target(lambda x: -0.5 * jnp.sum((x / width) ** 2), dim=2)
        pf.fit(jax.random.key(0), other, TINY_GAUSSIAN, steps=2, progress=False)
        return other

    fit(1.0)
    second = fit(2.0)
    both = count()
    assert both > 1
    # The same again compiles nothing, and drops nothing.
    pf.fit(jax.random.key(1), second, TINY_GAUSSIAN, steps=2, progress=False)
    assert count() == both
    fit(3.0)
    assert 0 < count() < both
    assert kept._cache_size() == 1


class Skipping(AbstractWrapper):
    """Every other step, at random, is not finite; `tells` says so in the metrics."""

    tells: bool = False

    def step(self, key, target, state):
        state, _ = self.inner.step(key, target, state)
        lost = jax.random.bernoulli(key)
        state = poisoned(state, jnp.where(lost, jnp.nan, 0.0))
        told = jnp.where(lost & self.tells, jnp.nan, 1.0)
        return state, {"one": told.astype(jnp.float32)}


# Four steps a report. The engine ends a call where it is told.
SKIPPING = Skipping().with_sizes(steps=400)
TELLING = Skipping(tells=True).with_sizes(steps=400)


def assert_means_of_what_was_kept(history):
    new = np.diff(history["skipped"], prepend=0)
    assert 0 < np.sum(new == 4) < len(new)
    np.testing.assert_array_equal(history["one"], np.where(new == 4, np.nan, 1.0))


def test_skipped_steps_are_no_part_of_the_means(target, tmp_path, monkeypatch):
    key, options = jax.random.key(0), {"progress": False}
    whole = pf.fit(key, target, SKIPPING, out=tmp_path / "a", **options)
    assert_means_of_what_was_kept(whole.history)
    with monkeypatch.context() as patch:
        # The first chunk is one step: this is in the midst of a report.
        interrupt_after(patch, 1)
        with pytest.warns(UnfinishedWarning):
            pf.fit(key, target, SKIPPING, out=tmp_path / "b", **options)
    # The second time everything is read back.
    for _ in range(2):
        rest = pf.fit(key, target, SKIPPING, out=tmp_path / "b", resume=True, **options)
        assert_same_bits(arrays_of(tmp_path / "a"), arrays_of(tmp_path / "b"))
        np.testing.assert_array_equal(whole.history["one"], rest.history["one"])

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    lines = (tmp_path / "b" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line, parse_constant=refuse) for line in lines]
    assert {row["one"] for row in rows} == {1.0, None}


@pytest.mark.parametrize("method", [SKIPPING, TELLING])
def test_what_is_skipped_does_not_depend_on_the_machine(target, monkeypatch, method):
    """Chunks of one step, or as long as a report: the same steps, the same bits."""
    method = method.with_sizes(steps=600)
    keys = jax.random.split(jax.random.key(3), 2)
    found = []
    for seconds in (1e-9, 100.0):
        monkeypatch.setattr(runner, "CHUNK_SECONDS", seconds)
        many = pf.fit_many(keys, target, method, progress=False)
        found.append([*many, pf.fit(keys[0], target, method, progress=False)])
    for short, long in zip(*found, strict=True):
        np.testing.assert_array_equal(
            short.sampler.network.mean, long.sampler.network.mean
        )
        np.testing.assert_array_equal(short.history["skipped"], long.history["skipped"])
        np.testing.assert_array_equal(short.history["one"], long.history["one"])
        # Half of the steps: four standard deviations of a binomial are 49.
        assert abs(short.history["skipped"][-1] - 300) < 49


@pytest.mark.parametrize("seconds", [1e-9, 100.0])
def test_a_hopeless_run_stops_at_the_hundredth_step(target, monkeypatch, seconds):
    class Hopeless(AbstractWrapper):
        def step(self, key, target, state):
            new, info = self.inner.step(key, target, state)
            return poisoned(new, jnp.where(state.clock.step >= 30, jnp.nan, 0.0)), info

    monkeypatch.setattr(runner, "CHUNK_SECONDS", seconds)
    with pytest.raises(TrainingError, match="stopped after 130 of 1000 steps: the"):
        method = Hopeless().with_sizes(steps=1000)
        pf.fit(jax.random.key(0), target, method, progress=False)


def test_every_seed_says_how_many_steps_of_its_own_were_skipped(target):
    keys = jax.random.split(jax.random.key(1), 3)
    fits = pf.fit_many(keys, target, SKIPPING, progress=False)
    counts = [fit.history["skipped"][-1] for fit in fits]
    assert len(set(counts)) > 1
    for fit, count in zip(fits, counts, strict=True):
        assert fit.nonfinite_steps == count
        assert fit.message.endswith(f" {count} steps were not finite and were skipped.")
        assert_means_of_what_was_kept(fit.history)


def test_fit_many_gives_each_seed_its_own_fit(target):
    keys = jax.random.split(jax.random.key(5), 3)
    fits = pf.fit_many(keys, target, TINY_GAUSSIAN, progress=False)
    alone = pf.fit(keys[1], target, TINY_GAUSSIAN, progress=False)
    assert [f.finished for f in fits] == [True] * 3
    # One program for all seeds rounds differently from one for a single seed.
    np.testing.assert_allclose(
        fits[1].sampler.network.mean, alone.sampler.network.mean, rtol=1e-3, atol=1e-4
    )
    assert not np.allclose(fits[0].sampler.network.mean, fits[1].sampler.network.mean)
    assert fits[0].history["loss"].shape == alone.history["loss"].shape


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"steps": 0}, "steps must be"),
        ({"batch_size": -1}, "batch_size must be"),
    ],
)
def test_bad_arguments(target, arguments, sentence):
    with pytest.raises(UsageError, match=sentence):
        pf.fit(jax.random.key(0), target, progress=False, **arguments)


def test_plain_lines_say_compiling_once(target, capsys):
    pf.fit(jax.random.key(0), target, TINY_GAUSSIAN)
    lines = capsys.readouterr().err
    assert lines.count("compiling") == 1
    assert "gaussian 40/40" in lines and "steps/s" in lines
