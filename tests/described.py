"""What must hold of every kind of network that a file can name."""

import dataclasses
import inspect
import json
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pushforward import _io
from pushforward.networks import KINDS, build, describe
from pushforward.sampler import arrays_of


def check_round_trip(description):
    """A network is described, built, and filled from a file's arrays."""
    shapes = build(description)
    assert json.loads(json.dumps(describe(shapes))) == description
    # With a key the same network is made of numbers; here not even they are.
    made = eqx.filter_eval_shape(build, description, jax.random.key(0))
    assert eqx.tree_equal(made, shapes)
    named = arrays_of(shapes)
    assert len(named) == len(jax.tree.leaves(shapes))
    rng = np.random.default_rng(0)
    arrays = {
        name: rng.normal(size=leaf.shape).astype(leaf.dtype)
        for name, leaf in named.items()
    }
    network = _io.restore(shapes, arrays, Path("here"), arrays_of)
    assert describe(network) == description
    for name, leaf in arrays_of(network).items():
        np.testing.assert_array_equal(leaf, arrays[name])


def check_every_argument_is_stored(description):
    """An argument that a file forgets would come back as its default."""
    kind = KINDS[description["kind"]]
    arguments = set(inspect.signature(kind.__init__).parameters) - {"self", "key"}
    assert arguments == set(description) - {"kind"}


def check_stays_in_32_bit(description, *levels):
    """Weights and output are in 32 bits, whatever the session's own width is."""
    network = build(description)
    assert {leaf.dtype for leaf in jax.tree.leaves(network)} == {np.dtype("float32")}
    x = jax.ShapeDtypeStruct((network.in_size,), jnp.float32)
    out = eqx.filter_eval_shape(lambda n, *a: n(*a), network, x, *levels)
    assert out.dtype == jnp.float32
    assert out.shape == (network.out_size,)


def check_static_fields_are_plain(description):
    """What a file holds as text is text, numbers and truth values."""
    network = build(description)
    for field in dataclasses.fields(network):
        if field.metadata.get("static"):
            assert isinstance(getattr(network, field.name), int | float | str | bool)
