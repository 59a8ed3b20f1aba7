"""The end of the second experiment's page: what is missing, and what was set."""

from pushforward.experiments import covertype_settings as settings
from pushforward.experiments.results import Results
from pushforward.report.tables import not_run


def missing(results: Results) -> str:
    """The cells of this scale that have not been run."""
    groups = settings.groups(settings.scale(results.scale))
    return not_run([g.label for g in groups if g.name not in results.cells])


def setup(results: Results) -> str:
    """The settings of the scale that was run."""
    scale = settings.scale(results.scale)
    paper = settings.paper_fields(scale)
    note = ""
    if scale.name != "full":
        note = f"""
Sizes are those of scale `{scale.name}`; what is said of trials and of the data was seen
at scale `full`.
"""
    return f"""## Settings
{note}
- Class 2 against the rest, features scaled to [0, 1], a column of ones, a seeded split
  of 80 to 20; w given alpha ~ N(0, 1/alpha), alpha ~ Gamma(1, rate .01), parameters (w,
  log alpha) with the Jacobian, 56 in all.
- "ours": whitened by a Newton run on all data, minibatches of 500 with a control
  variate at the mode. Rows whose score moves most within a posterior sd are picked
  more often, with weights that leave the score unbiased: one soil has two rows, and a
  minibatch of rows picked alike knows nothing of it or exaggerates it a thousandfold.
  "alone" is the same for a single sampler, whose seconds are its own.
- DFT-NS and DFT-NS*, ours: sigma .1 in whitened coordinates, 8 score steps of 2e-3 for
  each of the sampler's; with one, in a trial that is not in the result file, the
  sampler ran away.
- "paper": {paper["depth"]} hidden layers of {paper["width"]} (the paper says four
  layers), GELU, latent 128 (its text says 550 in another place), Adam at 2e-4, batch
  {paper["batch_size"]}, minibatch 500, two score steps, {paper["steps"]:,} iterations,
  no whitening and no control variate. Its standard score matching is replaced by the
  sliced estimate, which has the same expectation at a 56th of the cost. Its sigma,
  which it does not say, is {settings.PAPER_SIGMA} here (the narrowest posterior sd
  is .016), and 0 for KL-NS; the critic's two steps are our guess too. The paper repeats
  everything 30 times; the column of repeats says how often it was here.
- SGLD: step .1/(t + 1)^.55 on the log density summed over a minibatch (summed over all
  rows it would start with steps of 10^4), {scale.epochs:g} epochs in minibatches of
  100, its last 100 points. On the mean over rows, in a trial that is not in the
  result file, three epochs led nowhere near the posterior.
  SVGD: 100 particles, step .05, median bandwidth, the same data. Both start at draws of
  the prior. DSVI is a full Gaussian in whitened coordinates; the paper's learning rate
  of 1e-7 belongs to coordinates it does not give.
- Fisher-NS (critic) is Hu et al.'s.
"""
