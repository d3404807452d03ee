"""Members, steps and classifiers of this package that are no processes, as torch modules."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..core.likelihoods import towards_shares
from ..meta import (
    LEAST_PROBABILITY,
    AutoGPClassifier,
    BoostedClasses,
    BoostedTrees,
    NormalScores,
    RandomizedTrees,
    ScoredColumns,
)
from ._members import (
    PredictorModule,
    PredictorMoments,
    own_module,
    predictor_module,
    probability_module,
)
from ._trees import each_module


class BoostedClassesModule(nn.Module):
    """`BoostedClasses` as a torch module: rows (m, d) to probabilities (m, c)."""

    def __init__(self, of: BoostedClasses):
        super().__init__()
        self.parts = nn.ModuleList([probability_module(trees) for trees in of.trees_])

    def forward(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m c"]:
        return torch.stack([part(X) for part in self.parts]).mean(0)


class BoostedTreesModule(PredictorModule):
    """`BoostedTrees` as a torch module."""

    def __init__(self, of: BoostedTrees):
        super().__init__(predictor_module(of.trees_))
        self.line = None if of.line_ is None else predictor_module(of.line_)

    def mean(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        trees = self.below.mean(X)
        return trees if self.line is None else self.line.mean(X) + trees


class RandomizedTreesModule(PredictorModule):
    """`RandomizedTrees` as a torch module; all of the variance is noise."""

    least: Tensor

    def __init__(self, of: RandomizedTrees):
        super().__init__(each_module(of.trees_))
        self.register_buffer("least", torch.tensor(of.least_, dtype=torch.float64))

    def mean(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        return self.below(X).mean(1)

    def moments(self, X: Float[Tensor, "m d"]) -> PredictorMoments:
        each = self.below(X)
        mean = each.mean(1)
        variance = (each - mean[:, None]).square().mean(1) + self.least
        return mean, variance, torch.zeros_like(mean)


class ScoresModule(nn.Module):
    """`NormalScores`: a sum over pieces, because exported programs have no interpolation."""

    starts: Tensor
    lengths: Tensor
    slopes: Tensor

    def __init__(self, of: NormalScores):
        super().__init__()
        lengths = torch.as_tensor(np.diff(of.values))
        self.register_buffer("starts", torch.as_tensor(of.values[:-1]))
        self.register_buffer("lengths", lengths)
        self.register_buffer("slopes", torch.as_tensor(np.diff(of.scores)) / lengths)
        self._first = float(of.scores[0])

    def forward(self, x: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
        along = (x[:, None] - self.starts).clamp(min=0)
        found = self._first + torch.minimum(along, self.lengths) @ self.slopes
        before = (x - self.starts[0]).clamp(max=0)
        after = (x - self.starts[-1] - self.lengths[-1]).clamp(min=0)
        return found + self.slopes[0] * before + self.slopes[-1] * after


class ColumnsModule(nn.Module):
    """`ScoredColumns` as a torch module."""

    def __init__(self, of: ScoredColumns):
        super().__init__()
        self._columns = list(of.scores)
        self._scores = nn.ModuleList(map(ScoresModule, of.scores.values()))

    def forward(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m d"]:
        columns = list(X.unbind(1))
        for j, score in zip(self._columns, self._scores, strict=True):
            columns[j] = score(columns[j])
        return torch.stack(columns, 1)


class PooledClasses(nn.Module):
    """`AutoGPClassifier`: weighted probabilities of members, towards the classes' shares."""

    shares: Tensor

    def __init__(self, of: AutoGPClassifier):
        super().__init__()
        self.inputs = of._input_module()
        self.parts = nn.ModuleList([probability_module(member) for member in of.estimators_])
        self._power = 1 / float(of.temperature_)
        self.register_buffer("shares", torch.tensor(of.class_prior_, dtype=torch.float64))
        for k, (member, weight) in enumerate(zip(of.estimators_, of.weights_, strict=True)):
            # A fit may have lacked rows of some classes.
            places = torch.eye(len(self.shares), dtype=torch.float64)
            self.register_buffer(f"places{k}", float(weight) * places[list(member.classes_)])

    def forward(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m c"]:
        X = self.inputs(X)
        pooled = sum(part(X) @ getattr(self, f"places{k}") for k, part in enumerate(self.parts))
        return towards_shares(pooled.clamp_min(LEAST_PROBABILITY), self.shares, self._power)


own_module.register(BoostedTrees, BoostedTreesModule)
own_module.register(RandomizedTrees, RandomizedTreesModule)
own_module.register(BoostedClasses, BoostedClassesModule)
own_module.register(ScoredColumns, ColumnsModule)
own_module.register(AutoGPClassifier, PooledClasses)
