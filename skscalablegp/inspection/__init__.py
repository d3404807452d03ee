"""Pictures of fitted models, as scikit-learn's display classes draw them.

``Display.from_estimator`` computes what is drawn and draws it; ``from_predictions`` does so where
predictions suffice. A display keeps its numbers, so that ``display.plot(ax=...)`` draws them again
without another prediction. Each takes matplotlib axes or makes its own, and leaves what it drew in
``figure_``, ``ax_`` and further attributes. Displays reach through pipelines, searches and
transformed targets where `skscalablegp.metrics` does. They need matplotlib.
"""

from ._calibration import IntervalCalibrationDisplay
from ._intervals import PredictionIntervalDisplay
from ._posterior import PosteriorDisplay
from ._relevance import RelevanceDisplay
from ._training import TrainingDisplay

__all__ = [
    "IntervalCalibrationDisplay",
    "PosteriorDisplay",
    "PredictionIntervalDisplay",
    "RelevanceDisplay",
    "TrainingDisplay",
]
