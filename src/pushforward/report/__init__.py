"""Plots of draws; they need matplotlib (the extra `plots`)."""

from pushforward.report.plots import density_contours, draws_figure

__all__ = ["density_contours", "draws_figure"]
