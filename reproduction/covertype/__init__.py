"""The second experiment: Bayesian logistic regression on Covertype."""
