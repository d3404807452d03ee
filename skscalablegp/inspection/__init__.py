"""Pictures of fitted models, as scikit-learn's display classes draw them.

``Display.from_estimator`` makes predictions and draws them; ``from_predictions``, where it exists,
draws given predictions. A display stores its numbers, so that ``display.plot(ax=...)`` draws them
again without another prediction. It draws on the given matplotlib axes or makes new ones; they are
in ``figure_`` and ``ax_``, and further attributes hold the lines and bars. Displays accept
pipelines, searches and transformed targets as `skscalablegp.metrics` does. They need matplotlib.
"""

from ._calibration import IntervalCalibrationDisplay
from ._intervals import PredictionIntervalDisplay
from ._leaderboard import LeaderboardDisplay
from ._posterior import PosteriorDisplay
from ._relevance import RelevanceDisplay
from ._training import TrainingDisplay

__all__ = [
    "IntervalCalibrationDisplay",
    "LeaderboardDisplay",
    "PosteriorDisplay",
    "PredictionIntervalDisplay",
    "RelevanceDisplay",
    "TrainingDisplay",
]
