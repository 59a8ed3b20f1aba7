"""Files that an earlier version wrote: what they must still give."""

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

import pushforward as pf


def check_sampler(path, tmp_path):
    """The same latent points give the same draws; returns the sampler."""
    sampler = pf.load(path)
    stored = safetensors.numpy.load_file(path.with_suffix(".draws"))
    expected = [stored[k] for k in sorted(stored) if k.startswith("leaf")]
    # As it is read, and as this version writes it.
    for each in (sampler, pf.load(sampler.save(tmp_path / "again.pf"))):
        flat = jax.vmap(each._place)(stored["z"], stored["noise"])
        size = np.abs(stored["flat"]).max()
        np.testing.assert_allclose(flat, stored["flat"], rtol=1e-5, atol=1e-6 * size)
        tree = jax.vmap(each.structure.unflatten)(jnp.asarray(stored["flat"], float))
        for leaf, kept in zip(jax.tree.leaves(tree), expected, strict=True):
            np.testing.assert_allclose(leaf, kept, rtol=1e-6)
        if "log_p_flat" in stored and each.has_density:
            found = each.unconstrained().log_prob(stored["flat"])
            np.testing.assert_allclose(found, stored["log_p_flat"], rtol=1e-4)
    return sampler
