"""The one table of parameters: a name has one meaning and one constraint in all estimators.

Defaults belong to each class. Signatures and docstrings stay literal; `tests/contracts` compares
them with this table: with `PARAMETERS`, what scikit-learn checks before a fit, and with the
sentences below, with which every docstring begins its description. A class may say more after it.
Where "auto" stands for numbers that depend on the table, it is accepted by the classes whose
default it is.
Signatures and docstrings have the order of the table, from what most users set to what few need;
parameters that may be given by position come before it.

The model:

members
    Names of members, and pairs of a name and a regressor, in the order of their fits.
estimators
    Names and regressors that are stacked.
estimator
    Regressor on which this estimator builds.
noise_estimator
    Regressor that learns the size of the errors.
mean_function
    Regressor that predicts the mean, which the Gaussian process then corrects.
kernel
    Covariance function as a scikit-learn kernel, whose bounds (including "fixed") are
    respected.
likelihood
    Distribution of the target given the latent function.
n_components
    Number of basis functions; each random frequency contributes two, a sine and a cosine.
n_inducing
    Number of inducing points.
n_neighbors
    Number of training rows from which a new row is predicted.
expert_size
    Number of training rows of an expert.
combination
    Rule that combines the predictions of the experts.
grid_size
    Number of grid points along each column.
structure
    How the columns share grids.
feature_extractor
    Network between the rows and the kernel: layer sizes, a torch module, or a callable that
    returns a module for a given number of columns.
basis
    Basis functions of the model.
inducing
    Method that chooses the inducing points, or an array of points.
truncation
    Distribution of the term at which a series is truncated.
min_components
    Number of random Fourier functions (sines and cosines) that every step uses.
alpha
    Known noise variance, added to the diagonal of the kernel matrix, in squared units of y, or
    of the normalised target if normalize_y=True.
normalize_y
    Whether to subtract the target's mean and divide by its standard deviation before training.
standardize
    Whether to subtract the mean of each column of X and divide by its standard deviation.
priors
    Prior distributions of hyperparameters, by name; training adds their log density to its
    objective.
small_table
    Whether the exact process replaces the method on tables of few rows.
residuals
    Method that predicts training rows without having seen them.
tails
    Shape of the distribution from which quantiles and intervals are computed.
weight
    Factor of the mean function's predictions, between 0 and 1.
variance_rank
    Rank of the low-rank approximation of the variances.

Training:

optimizer
    Method that trains the hyperparameters; None keeps them at their initial values.
max_iter
    Maximum number of training steps.
max_epochs
    Maximum number of training passes over the rows.
batch_size
    Number of rows in a training step.
objective
    Objective that the hyperparameters maximise.
inference
    Whether the weights are computed with full-batch linear algebra or by stochastic steps.
optimize_inducing
    Whether training moves the inducing points.
early_stopping
    Whether rows are held out to choose the best parameters.
validation_fraction
    Fraction of the rows that is held out.
n_restarts_optimizer
    Number of additional starting points of the optimiser, drawn log-uniformly within the bounds
    of the kernel.
train_on
    Rows on which the hyperparameters are trained.
calibrate
    Whether to calibrate the predictive distribution on the training rows.
local_scale
    Whether standard deviations follow the errors of the nearest training rows.
n_wide_neighbors
    Number of rows of wide neighbourhoods, which correct predictions from the nearest rows.
n_refits
    Number of times that the regressor is fitted again with the learned noise.
n_folds
    Number of folds for cross-fitting.
random_state
    Seed for all random choices of a fit; None uses a new seed each time.

Linear solves:

solver
    Solver for the linear systems of a training step.
preconditioner
    Preconditioner of the iterative linear solver.
gradient
    Estimator of the gradient of the log marginal likelihood.
posterior
    Method that computes predictive variances.
n_probes
    Number of probe vectors for the trace in the gradient.
probes
    Distribution of the probe vectors.
solver_tol
    Relative residual at which a linear solve ends.

Limits and resources:

max_seconds
    Time budget of the whole fit in seconds. A model that would take longer is made smaller, with a
    warning; when the time runs out, the best state so far is kept.
memory_budget
    Memory that matrices may take, in bytes; "auto" uses the free memory of the machine.
device
    Device on which the fit runs; "auto" uses CUDA where it is available.
dtype
    Precision of the matrix products in training.
n_jobs
    Number of processes that share the work, as in joblib.
callbacks
    Functions called after each step or score with a `TrainingStep`; training ends when one
    returns a true value.
checkpoint
    Folder of a file from which the same fit continues if its process was killed; the file is
    removed when the fit has ended.
verbose
    Whether to show a progress bar.

The rest:

min_noise
    Lower bound of the noise standard deviation, in units of the normalised target.
copy_X_train
    Whether to store a copy of X; otherwise a reference to X is stored.
n_targets
    Number of target columns; a fit checks it against y.
learning_rate
    Step size of the optimiser, for optimisers that have one.
n_iter_no_change
    Number of steps or scores without progress after which training ends; None switches this
    rule off.
tol
    Smallest improvement of a score that counts as progress.
subset_size
    Number of rows in the exact fit from which training starts.
warm_start
    Whether a fit continues from the previous fit.
solver_max_epochs
    Budget of one linear solve, in epochs; one epoch evaluates n^2 kernel entries.
solver_warm_start
    Whether each solve starts from the solution of the previous step, with the same probe
    vectors.
products
    How products with the kernel matrix are computed where it is not stored.
training_max_epochs
    Budget of all linear solves during training on all rows, in solver epochs; None sets no
    limit.
n_draws
    Number of truncation points over which each of the two solutions of a step is averaged.
reorthogonalize
    Whether to reorthogonalise the residuals of conjugate gradients.
component_step
    Number of random Fourier functions that each term of the series adds.
component_batch_size
    Number of basis functions in one random draw.
n_dense
    Number of dense columns in the factor of the covariance; the remaining columns are diagonal.
covariance
    Method that computes predictive variances after stochastic training.
control_variate
    Control variate that reduces the variance of stochastic steps.
control_variate_rank
    Number of support rows, at which the latent function is computed exactly.
variational_optimizer
    Optimiser of the variational distribution.
variational_learning_rate
    Step size of the variational optimiser.
decay
    Fraction of the learning rates that remains at the last step.
freeze
    Fraction of the steps during which the hyperparameters stay fixed.
max_precision
    Prior precision above which a basis function is removed from the model.
n_centers
    Number of rows whose neighbourhoods the objective consists of.
extrapolation
    Treatment of rows outside the grid.
max_variance_rank
    Largest rank that a fit tries.
variance_tol
    Accepted error of the variances, as a fraction of the target's mean square.
activation
    Activation function after each layer of a network that is given by its layer sizes.
penalty
    Weight of the penalty term in the saddle-point problem.
penalty_scale
    Scale relative to which the constraint of the saddle-point problem is measured.
exact_passes
    Whether each score also sets the parameters that have a closed-form optimum to that optimum.
dual_rate
    Step size of the ascent in the saddle-point problem.
averaging
    Weight of a batch in the running average.
averaging_decay
    Exponent with which this weight decreases over the steps.
batches
    Method that chooses the rows of a batch.
n_experts
    Number of experts that predict a row, those nearest to it.
partition
    Method that divides the rows among the experts.
share_hyperparameters
    Whether all experts have the same hyperparameters.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

from .._compat import HasMethods, Interval, StrOptions
from .likelihoods import Likelihood

_POSITIVE = Interval(Real, 0, None, closed="neither")
_NOT_NEGATIVE = Interval(Real, 0, None, closed="left")
# Products of larger step sizes overflow in single precision.
_STEP_SIZE = Interval(Real, 0, 1e30, closed="right")
_COUNT = Interval(Integral, 1, None, closed="left")
_NATURAL = Interval(Integral, 0, None, closed="left")
_SHARE = Interval(Real, 0, 1, closed="neither")
_RATE = Interval(Real, 0, 1, closed="right")
_AUTO = StrOptions({"auto"})


def rules_of(defaults: Mapping[str, Any], rules: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """The rules of one class; "auto" is accepted in place of numbers where it is the default.

    Parameters
    ----------
    defaults : mapping of str to object
        The parameters of a constructor and their defaults.
    rules : mapping of str to list
        `PARAMETERS`; parameters without a rule are left out.
    """
    return {
        name: [rule for rule in rules[name] if rule is not _AUTO or default == "auto"]
        for name, default in defaults.items()
        if name in rules
    }


PARAMETERS: dict[str, list[Any]] = {
    # The model.
    "members": [list, _AUTO],
    "estimators": [list, None],
    "estimator": [HasMethods(["fit", "predict"]), None],
    "noise_estimator": [HasMethods(["fit", "predict"]), None],
    "mean_function": [HasMethods(["fit", "predict"]), None],
    "kernel": [None, HasMethods(["get_params", "clone_with_theta"])],
    "likelihood": [str, Likelihood],
    "n_components": [_COUNT, _AUTO],
    "n_inducing": [_COUNT, _AUTO],
    "n_neighbors": [_COUNT, _AUTO],
    "expert_size": [_COUNT, _AUTO],
    "combination": [StrOptions({"poe", "gpoe", "bcm", "rbcm", "grbcm"})],
    "grid_size": [_AUTO, Interval(Integral, 6, None, closed="left"), "array-like"],
    "structure": [StrOptions({"auto", "product", "additive"})],
    "feature_extractor": [
        _AUTO,
        None,
        "array-like",
        _COUNT,
        callable,
        HasMethods(["parameters", "forward"]),
    ],
    "basis": [StrOptions({"auto", "fourier", "rows"}), "array-like"],
    "inducing": [str, "array-like"],
    "truncation": [str, HasMethods(["on"])],
    "min_components": [_COUNT, _AUTO],
    "alpha": [_NOT_NEGATIVE, "array-like"],
    "normalize_y": ["boolean", _AUTO],
    "standardize": ["boolean"],
    "priors": [dict, _AUTO, None],
    "small_table": [StrOptions({"exact", "method"})],
    "residuals": [
        StrOptions({"auto", "leave_one_out", "held_out"}),
        Interval(Integral, 2, None, closed="left"),
    ],
    "tails": [StrOptions({"normal", "student", "empirical", "auto"})],
    "weight": [Interval(Real, 0, 1, closed="both"), _AUTO],
    "variance_rank": [_COUNT, None],
    # Training.
    "optimizer": [str, callable, HasMethods(["maximize"]), None],
    "max_iter": [_COUNT, _AUTO],
    "max_epochs": [_COUNT, _AUTO],
    "batch_size": [_COUNT, _AUTO],
    "objective": [StrOptions({"leave_one_out", "blocks", "subset", "vecchia"})],
    "inference": [StrOptions({"auto", "exact", "stochastic"})],
    "optimize_inducing": ["boolean"],
    "early_stopping": ["boolean", _AUTO],
    "validation_fraction": [_SHARE],
    "n_restarts_optimizer": [_NATURAL],
    "train_on": [StrOptions({"auto", "subsets", "all"})],
    "calibrate": ["boolean"],
    "local_scale": ["boolean"],
    "n_wide_neighbors": [_NATURAL, _AUTO],
    "n_refits": [_NATURAL],
    "n_folds": [Interval(Integral, 2, None, closed="left")],
    "random_state": ["random_state"],
    # Linear solves.
    "solver": [str, HasMethods(["init", "step"])],
    "preconditioner": [str, None, HasMethods(["build"]), HasMethods(["solve"])],
    "gradient": [str, HasMethods(["estimate"])],
    "posterior": [StrOptions({"auto", "exact", "neighbors", "pathwise", "solve"})],
    "n_probes": [_COUNT, _AUTO],
    "probes": [StrOptions({"rademacher", "normal", "preconditioned"})],
    "solver_tol": [_POSITIVE],
    # Limits and resources.
    "max_seconds": [_POSITIVE, None],
    "memory_budget": [_POSITIVE, _AUTO],
    "device": [str],
    "dtype": [StrOptions({"auto", "float32", "float64"})],
    "n_jobs": [Integral, None],
    "callbacks": ["array-like", callable, None],
    "checkpoint": [str, os.PathLike, None],
    "verbose": ["verbose"],
    # The rest.
    "min_noise": [Interval(Real, 0, 10, closed="neither")],
    "copy_X_train": ["boolean"],
    "n_targets": [_COUNT, None],
    "learning_rate": [_STEP_SIZE, _AUTO],
    "n_iter_no_change": [_COUNT, None],
    "tol": [_NOT_NEGATIVE],
    "subset_size": [_COUNT, _AUTO, None],
    "warm_start": ["boolean"],
    "solver_max_epochs": [_POSITIVE],
    "solver_warm_start": ["boolean"],
    "products": [StrOptions({"auto", "tiles", "compiled", "keops"})],
    "training_max_epochs": [_POSITIVE, _AUTO, None],
    "n_draws": [_COUNT],
    "reorthogonalize": ["boolean", _AUTO],
    "component_step": [_COUNT],
    "component_batch_size": [_COUNT, _AUTO],
    "n_dense": [_NATURAL, _AUTO],
    "covariance": [StrOptions({"support", "chevron"})],
    "control_variate": [StrOptions({"regression", "squares"}), None],
    "control_variate_rank": [_COUNT, _AUTO],
    "variational_optimizer": [str],
    "variational_learning_rate": [_STEP_SIZE, _AUTO],
    "decay": [_RATE],
    "freeze": [Interval(Real, 0, 1, closed="both")],
    "max_precision": [_POSITIVE],
    "n_centers": [_COUNT],
    "extrapolation": [StrOptions({"extend", "error"})],
    "max_variance_rank": [_COUNT, _AUTO],
    "variance_tol": [_POSITIVE],
    "activation": [StrOptions({"relu", "leaky_relu", "elu", "gelu", "silu", "softplus", "tanh"})],
    "penalty": [_POSITIVE, callable],
    "penalty_scale": [StrOptions({"relative", "published"})],
    "exact_passes": ["boolean"],
    "dual_rate": [_RATE, _AUTO],
    "averaging": [_RATE, _AUTO],
    "averaging_decay": [Interval(Real, 0, 1, closed="both")],
    "batches": [StrOptions({"random", "neighbours"})],
    "n_experts": [_COUNT, _AUTO],
    "partition": [StrOptions({"random", "kmeans"})],
    "share_hyperparameters": ["boolean"],
}
