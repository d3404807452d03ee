"""Deep kernels with a finite number of features."""

from ._batch import FeatureBatch, MinibatchGradient
from ._compositional import CompositionalGradient
from ._minimax import MinimaxGradient
from ._objective import (
    best_scales,
    data_fit,
    feature_moments,
    held_out_noise,
    log_det_direction,
    weight_space_likelihood,
)
from ._regressors import BSGDDKLRegressor, MinimaxDKLRegressor, SCGDDKLRegressor
from ._stepper import cosine
