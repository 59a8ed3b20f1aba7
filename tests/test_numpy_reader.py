"""The reader without JAX gives what pushforward gives."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import pushforward as pf
from pushforward import numpy_reader
from pushforward.networks.coupling import _alternating_masks, _masks
from pushforward.networks.mlp import ACTIVATIONS
from pushforward.targets.constraints import KINDS, Constraint
from pushforward.targets.structure import Structure

pytestmark = pytest.mark.once

GOLDEN = Path(__file__).parent / "data" / "format_2"


@pytest.mark.parametrize("name", ["mixture_spline", "coupling_tree", "line_spline"])
def test_stored_samplers(name):
    """Latent points, draws and densities that an earlier version wrote."""
    ours = numpy_reader.load(GOLDEN / f"{name}.pf")
    stored = safetensors.numpy.load_file(GOLDEN / f"{name}.draws")
    noise = stored["noise"] if stored["noise"].size else None
    flat = ours.push(stored["z"], noise)
    size = np.abs(stored["flat"]).max()
    np.testing.assert_allclose(flat, stored["flat"], rtol=1e-5, atol=1e-5 * size)
    tree = ours.constrain(stored["flat"])
    expected = [stored[k] for k in sorted(stored) if k.startswith("leaf")]
    for leaf, kept in zip(jax.tree.leaves(tree), expected, strict=True):
        np.testing.assert_allclose(leaf, kept, rtol=1e-5, atol=1e-6)
    if "log_p_flat" in stored:
        found = ours.log_prob_unconstrained(stored["flat"].astype(float))
        np.testing.assert_allclose(found, stored["log_p_flat"], rtol=1e-4, atol=1e-4)


EXAMPLE = {
    "real": np.zeros(2),
    "positive": 1.0,
    "greater_than([0, 2])": np.array([1.0, 3.0]),
    "less_than(-1)": -2.0,
    "unit_interval": 0.5,
    "interval(-1, 3)": np.zeros((2, 1)),
    "ordered": np.arange(3.0),
    "simplex": np.ones(3) / 3,
    "zero_sum": np.zeros(3),
    "centred": np.zeros((3, 2)),
    "circular": np.zeros(2),
    "unit_vector": np.ones(3),
    "correlation": np.eye(3),
    "cholesky_correlation": np.eye(3),
    "covariance": np.eye(2),
    "cholesky_covariance": np.eye(2),
}


@pytest.fixture(scope="module")
def every_constraint(tmp_path_factory):
    structure = Structure.of(
        {"a": {f"p{i:02}": value for i, value in enumerate(EXAMPLE.values())}},
        {f"a.p{i:02}": text for i, text in enumerate(EXAMPLE)},
    )
    network = pf.networks.AffineMap(structure.size)
    plain = pf.Sampler.from_network(network)
    sampler = pf.Sampler(network, plain.preconditioner, structure)
    path = tmp_path_factory.mktemp("reader") / "constraints.pf"
    return sampler, sampler.save(path)


def test_constraints_and_densities_are_those_of_jax(every_constraint):
    assert {Constraint.parse(text).kind for text in EXAMPLE} == set(KINDS)
    assert set(numpy_reader._KINDS) == set(KINDS)
    sampler, path = every_constraint
    ours = numpy_reader.load(path)
    assert ours.dim == sampler.dim
    assert pf.load(path).structure == sampler.structure
    drawn = ours.sample(np.random.default_rng(0), 40)
    z = np.random.default_rng(0).standard_normal((40, ours.dim))

    @jax.jit
    @jax.vmap
    def expected(z):
        return sampler.structure.unflatten(z), sampler.structure.log_det(z)

    tree, log_det = expected(jnp.asarray(z, float))
    for x, y in zip(jax.tree.leaves(drawn), jax.tree.leaves(tree), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
    normal = -0.5 * (z**2).sum(axis=1) - 0.5 * ours.dim * np.log(2 * np.pi)
    found = ours.log_prob(drawn)
    np.testing.assert_allclose(found, normal - log_det, rtol=1e-5, atol=1e-5)
    outside = jax.tree.map(lambda a: -np.abs(a) - 5, drawn)
    assert (ours.log_prob(outside) == -np.inf).all()


def test_masks_and_activations_are_those_of_the_networks():
    for dim, layers in ((2, 3), (5, 8), (9, 12)):
        np.testing.assert_array_equal(
            numpy_reader._mixed(dim, layers), _masks(dim, layers)
        )
        np.testing.assert_array_equal(
            numpy_reader._alternating(dim, layers), _alternating_masks(dim, layers)
        )
    x = np.linspace(-3, 3, 7)
    assert set(numpy_reader._ACTIVATIONS) == set(ACTIVATIONS)
    for name, function in ACTIVATIONS.items():
        np.testing.assert_allclose(
            numpy_reader._ACTIVATIONS[name](x), function(jnp.asarray(x)), atol=1e-6
        )


_ALONE = """
import sys, numpy as np
sys.modules["jax"] = None
from numpy_reader import load
draws = load(sys.argv[1]).sample(np.random.default_rng(0), 3)
assert "pushforward" not in sys.modules
print(draws["a"]["p07"].sum(axis=1).round(6).tolist())
"""


def test_a_copied_file_needs_numpy_alone(every_constraint, tmp_path):
    _, path = every_constraint
    source = Path(numpy_reader.__file__).read_text("utf-8")
    (tmp_path / "numpy_reader.py").write_text(source, "utf-8")
    done = subprocess.run(
        [sys.executable, "-c", _ALONE, str(path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == "[1.0, 1.0, 1.0]", done.stderr


def test_files_that_cannot_be_read(every_constraint, tmp_path):
    sampler, path = every_constraint
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    (tmp_path / "flipped.pf").write_bytes(data)
    with pytest.raises(ValueError, match="does not fit its checksum"):
        numpy_reader.load(tmp_path / "flipped.pf")
    (tmp_path / "cut.pf").write_bytes(data[:50])
    with pytest.raises(ValueError, match="is damaged, or is no pushforward file"):
        numpy_reader.load(tmp_path / "cut.pf")
    with pytest.raises(ValueError, match=r"'ResidualMap', which this reader"):
        numpy_reader.load(GOLDEN / "residual_noise.pf")
    old = GOLDEN.parent / "format_1" / "coupling.pf"
    with pytest.raises(ValueError, match="has the format 1, and this reads 2"):
        numpy_reader.load(old)
    half = sampler.save(tmp_path / "half.pf", dtype="bfloat16")
    assert numpy_reader.load(half).dim == sampler.dim
