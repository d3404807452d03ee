"""Regression on random Fourier features, and on unbiased series of them."""

from ._collapsed import collapsed_marginal_likelihood
from ._gradients import FeatureGradient, SingleSampleGradient
from ._rff import RFFRegressor
from ._single_sample import FeatureLevels, level_terms, single_sample_terms
from ._ssrff import SSRFFRegressor
