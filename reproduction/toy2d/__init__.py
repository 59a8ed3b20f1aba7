"""The first experiment: every sampler on six densities in the plane."""
