"""The third experiment: a one-step sampler for an energy model of digits."""
