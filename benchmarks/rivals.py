#!/usr/bin/env python3
"""Compare well-known rivals with the recommended estimators: one line of JSON a cell.

    pip install -e ".[rivals]"
    python benchmarks/rivals.py                                   # all, on the six larger sets
    python benchmarks/rivals.py --datasets pol --estimators CatBoostUncertainty HeteroscedasticStack

A cell is one estimator, data set and split, run once by one thread, as compare.py does it: what the
output file has is skipped, what is not installed says so. Rivals have the settings that their users
take; inputs and target are standardised by the training rows.

CatBoostUncertainty            RMSEWithUncertainty, at most 3,000 trees at a rate of 0.06, early
                               stopping on a tenth
LightGBMQuantiles              a model of the mean and 13 of quantiles, at most 1,000 trees at a
                               rate of 0.05, early stopping on a tenth
NGBoostNormal                  500 steps of the natural gradient
GPBoostVecchia                 a Gaussian process on 20 neighbours, Matern-3/2
HistGradientBoostingRegressor  as in compare.py
HeteroscedasticTrees           HeteroscedasticRegressor over HistGradientBoostingRegressor
HeteroscedasticDeep            HeteroscedasticRegressor over SCGDDKLRegressor
HeteroscedasticExperts         HeteroscedasticRegressor over PoERegressor
HeteroscedasticStack           HeteroscedasticRegressor over StackedGPRegressor, which the guide
                               recommends
HeteroscedasticTreesTails, HeteroscedasticStackTails
                               the same with tails="auto"; CRPS and coverage are those of their
                               quantiles, as LightGBM's

``--datasets flights`` has 300,000 training flights and 10,000 test flights.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import compare

compare.SCRIPT, compare.MODULE, compare.RESULTS = __file__, "rival_models", "rivals.jsonl"
compare.BASELINES = [
    "CatBoostUncertainty",
    "LightGBMQuantiles",
    "NGBoostNormal",
    "GPBoostVecchia",
    "HistGradientBoostingRegressor",
    "HeteroscedasticTrees",
    "HeteroscedasticDeep",
    "HeteroscedasticExperts",
    "HeteroscedasticStack",
    "HeteroscedasticTreesTails",
    "HeteroscedasticStackTails",
]

if __name__ == "__main__":
    arguments = sys.argv[1:]
    if "--estimators" not in arguments and "--cell" not in arguments:
        arguments += ["--estimators", *compare.BASELINES]
    compare.main(arguments)
