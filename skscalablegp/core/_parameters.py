"""The one table of parameters: a name has one meaning and one constraint in all estimators.

Defaults belong to each class. Signatures and docstrings stay literal; `tests/contracts` compares
them with this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from .._compat import HasMethods, Interval, StrOptions
from .likelihoods import Likelihood

_POSITIVE = Interval(Real, 0, None, closed="neither")
_NOT_NEGATIVE = Interval(Real, 0, None, closed="left")
# Larger ones are no numbers in single precision once they are multiplied.
_STEP_SIZE = Interval(Real, 0, 1e30, closed="right")
_COUNT = Interval(Integral, 1, None, closed="left")
_NATURAL = Interval(Integral, 0, None, closed="left")
_SHARE = Interval(Real, 0, 1, closed="neither")
_RATE = Interval(Real, 0, 1, closed="right")
_AUTO = StrOptions({"auto"})


@dataclass(frozen=True)
class Parameter:
    """What holds of a parameter in every class that has it.

    Attributes
    ----------
    rule : list
        What scikit-learn checks before a fit.
    meaning : str
        The sentence with which every docstring describes it; a class may say more after it.
    """

    rule: list[Any]
    meaning: str


PARAMETERS: dict[str, Parameter] = {
    # The model.
    "kernel": Parameter(
        [None, HasMethods(["get_params", "clone_with_theta"])],
        'Covariance function as a scikit-learn kernel, whose bounds (including "fixed") '
        "are respected.",
    ),
    "priors": Parameter(
        [dict, _AUTO, None],
        "Prior distributions of hyperparameters, by name; training adds their log density "
        "to its objective.",
    ),
    "alpha": Parameter(
        [_NOT_NEGATIVE, "array-like"],
        "Known noise variance, added to the diagonal of the kernel matrix, in squared "
        "units of y, or of the normalised target if normalize_y=True.",
    ),
    "min_noise": Parameter(
        [Interval(Real, 0, 10, closed="neither")],
        "Lower bound of the noise standard deviation, in units of the normalised target.",
    ),
    "likelihood": Parameter(
        [str, Likelihood],
        "Distribution of the target given the latent function.",
    ),
    "normalize_y": Parameter(
        ["boolean", _AUTO],
        "Whether to subtract the target's mean and divide by its standard deviation "
        "before training.",
    ),
    "standardize": Parameter(
        ["boolean"],
        "Whether to subtract the mean of each column of X and divide by its standard deviation.",
    ),
    "copy_X_train": Parameter(
        ["boolean"], "Whether to store a copy of X; otherwise a reference to X is stored."
    ),
    "n_targets": Parameter([_COUNT, None], "Number of target columns; a fit checks it against y."),
    "random_state": Parameter(
        ["random_state"], "Seed for all random choices of a fit; None uses a new seed each time."
    ),
    # Training of the hyperparameters.
    "optimizer": Parameter(
        [str, callable, HasMethods(["maximize"]), None],
        "Method that trains the hyperparameters; None keeps them at their initial values.",
    ),
    "n_restarts_optimizer": Parameter(
        [_NATURAL],
        "Number of additional starting points of the optimiser, drawn log-uniformly "
        "within the bounds of the kernel.",
    ),
    "learning_rate": Parameter(
        [_STEP_SIZE, _AUTO], "Step size of the optimiser, for optimisers that have one."
    ),
    "max_iter": Parameter([_COUNT, _AUTO], "Maximum number of training steps."),
    "max_epochs": Parameter([_COUNT, _AUTO], "Maximum number of training passes over the rows."),
    "n_iter_no_change": Parameter(
        [_COUNT, None],
        "Number of steps or scores without progress after which training ends; None "
        "switches this rule off.",
    ),
    "tol": Parameter([_NOT_NEGATIVE], "Smallest improvement of a score that counts as progress."),
    "subset_size": Parameter(
        [_COUNT, _AUTO, None], "Number of rows in the exact fit from which training starts."
    ),
    "batch_size": Parameter([_COUNT, _AUTO], "Number of rows in a training step."),
    "warm_start": Parameter(["boolean"], "Whether a fit continues from the previous fit."),
    "early_stopping": Parameter(
        ["boolean", _AUTO], "Whether rows are held out to choose the best parameters."
    ),
    "validation_fraction": Parameter([_SHARE], "Fraction of the rows that is held out."),
    # Linear solves.
    "solver": Parameter(
        [str, HasMethods(["init", "step"])], "Solver for the linear systems of a training step."
    ),
    "preconditioner": Parameter(
        [str, None, HasMethods(["build"]), HasMethods(["solve"])],
        "Preconditioner of the iterative linear solver.",
    ),
    "solver_tol": Parameter([_POSITIVE], "Relative residual at which a linear solve ends."),
    "solver_max_epochs": Parameter(
        [_POSITIVE],
        "Budget of one linear solve, in epochs; one epoch evaluates n^2 kernel entries.",
    ),
    "solver_warm_start": Parameter(
        ["boolean"],
        "Whether each solve starts from the solution of the previous step, with the same "
        "probe vectors.",
    ),
    "training_max_epochs": Parameter(
        [_POSITIVE, _AUTO, None],
        "Budget of all linear solves during training on all rows, in solver epochs; None "
        "sets no limit.",
    ),
    "gradient": Parameter(
        [str, HasMethods(["estimate"])], "Estimator of the gradient of the log marginal likelihood."
    ),
    "n_probes": Parameter(
        [_COUNT, _AUTO], "Number of probe vectors for the trace in the gradient."
    ),
    "probes": Parameter(
        [StrOptions({"rademacher", "normal", "preconditioned"})],
        "Distribution of the probe vectors.",
    ),
    "n_draws": Parameter(
        [_COUNT],
        "Number of truncation points over which each of the two solutions of a step is averaged.",
    ),
    "reorthogonalize": Parameter(
        ["boolean", _AUTO], "Whether to reorthogonalise the residuals of conjugate gradients."
    ),
    "truncation": Parameter(
        [str, HasMethods(["on"])], "Distribution of the term at which a series is truncated."
    ),
    "posterior": Parameter(
        [StrOptions({"auto", "exact", "pathwise", "solve"})],
        "Method that computes predictive variances.",
    ),
    # Basis functions.
    "n_components": Parameter(
        [_COUNT, _AUTO],
        "Number of basis functions; each random frequency contributes two, a sine and a cosine.",
    ),
    "min_components": Parameter(
        [_COUNT], "Number of random Fourier functions (sines and cosines) that every step uses."
    ),
    "component_step": Parameter(
        [_COUNT], "Number of random Fourier functions that each term of the series adds."
    ),
    "component_batch_size": Parameter(
        [_COUNT, _AUTO], "Number of basis functions in one random draw."
    ),
    "basis": Parameter(
        [StrOptions({"auto", "fourier", "rows"}), "array-like"],
        "Basis functions of the model.",
    ),
    "n_dense": Parameter(
        [_NATURAL, _AUTO],
        "Number of dense columns in the factor of the covariance; the remaining columns "
        "are diagonal.",
    ),
    "covariance": Parameter(
        [StrOptions({"support", "chevron"})],
        "Method that computes predictive variances after stochastic training.",
    ),
    "control_variate": Parameter(
        [StrOptions({"regression", "squares"}), None],
        "Control variate that reduces the variance of stochastic steps.",
    ),
    "control_variate_rank": Parameter(
        [_COUNT, _AUTO], "Number of support rows, at which the latent function is computed exactly."
    ),
    "inference": Parameter(
        [StrOptions({"auto", "exact", "stochastic"})],
        "Whether the weights are computed with full-batch linear algebra or by stochastic steps.",
    ),
    "variational_optimizer": Parameter([str], "Optimiser of the variational distribution."),
    "variational_learning_rate": Parameter(
        [_STEP_SIZE, _AUTO], "Step size of the variational optimiser."
    ),
    "decay": Parameter([_RATE], "Fraction of the learning rates that remains at the last step."),
    "freeze": Parameter(
        [Interval(Real, 0, 1, closed="both")],
        "Fraction of the steps during which the hyperparameters stay fixed.",
    ),
    "max_precision": Parameter(
        [_POSITIVE], "Prior precision above which a basis function is removed from the model."
    ),
    # Inducing points.
    "n_inducing": Parameter([_COUNT, _AUTO], "Number of inducing points."),
    "inducing": Parameter(
        [str, "array-like"], "Method that chooses the inducing points, or an array of points."
    ),
    "optimize_inducing": Parameter(["boolean"], "Whether training moves the inducing points."),
    "calibrate": Parameter(
        ["boolean"], "Whether to calibrate the predictive distribution on the training rows."
    ),
    # Neighbours.
    "n_neighbors": Parameter(
        [_COUNT, _AUTO], "Number of training rows from which a new row is predicted."
    ),
    "objective": Parameter(
        [StrOptions({"leave_one_out", "blocks", "subset"})],
        "Objective that the hyperparameters maximise.",
    ),
    # Grids.
    "grid_size": Parameter(
        [_AUTO, Interval(Integral, 6, None, closed="left"), "array-like"],
        "Number of grid points along each column.",
    ),
    "structure": Parameter(
        [StrOptions({"auto", "product", "additive"})], "How the columns share grids."
    ),
    "extrapolation": Parameter(
        [StrOptions({"extend", "error"})], "Treatment of rows outside the grid."
    ),
    "variance_rank": Parameter(
        [_COUNT, None], "Rank of the low-rank approximation of the variances."
    ),
    "max_variance_rank": Parameter([_COUNT, _AUTO], "Largest rank that a fit tries."),
    "variance_tol": Parameter(
        [_POSITIVE], "Accepted error of the variances, as a fraction of the target's mean square."
    ),
    # Networks.
    "feature_extractor": Parameter(
        [
            StrOptions({"auto"}),
            None,
            "array-like",
            _COUNT,
            callable,
            HasMethods(["parameters", "forward"]),
        ],
        "Network between the rows and the kernel: layer sizes, a torch module, or a "
        "callable that returns a module for a given number of columns.",
    ),
    "activation": Parameter(
        [StrOptions({"relu", "leaky_relu", "elu", "gelu", "silu", "softplus", "tanh"})],
        "Activation function after each layer of a network that is given by its layer sizes.",
    ),
    "penalty": Parameter(
        [_POSITIVE, callable], "Weight of the penalty term in the saddle-point problem."
    ),
    "penalty_scale": Parameter(
        [StrOptions({"relative", "published"})],
        "Scale relative to which the constraint of the saddle-point problem is measured.",
    ),
    "exact_passes": Parameter(
        ["boolean"],
        "Whether each score also sets the parameters that have a closed-form optimum to "
        "that optimum.",
    ),
    "dual_rate": Parameter([_RATE, _AUTO], "Step size of the ascent in the saddle-point problem."),
    "averaging": Parameter([_RATE, _AUTO], "Weight of a batch in the running average."),
    "averaging_decay": Parameter(
        [Interval(Real, 0, 1, closed="both")],
        "Exponent with which this weight decreases over the steps.",
    ),
    "batches": Parameter(
        [StrOptions({"random", "neighbours"})], "Method that chooses the rows of a batch."
    ),
    # Experts.
    "combination": Parameter(
        [StrOptions({"poe", "gpoe", "bcm", "rbcm", "grbcm"})],
        "Rule that combines the predictions of the experts.",
    ),
    "expert_size": Parameter([_COUNT, _AUTO], "Number of training rows of an expert."),
    "partition": Parameter(
        [StrOptions({"random", "kmeans"})], "Method that divides the rows among the experts."
    ),
    "share_hyperparameters": Parameter(
        ["boolean"], "Whether all experts have the same hyperparameters."
    ),
    "n_jobs": Parameter(
        [Integral, None], "Number of experts that are processed in parallel, as in joblib."
    ),
    "estimator": Parameter(
        [HasMethods(["fit", "predict"]), None], "Regressor on which this estimator builds."
    ),
    "estimators": Parameter([list, None], "Names and regressors that are stacked."),
    "noise_estimator": Parameter(
        [HasMethods(["fit", "predict"]), None], "Regressor that learns the size of the errors."
    ),
    "residuals": Parameter(
        [
            StrOptions({"auto", "leave_one_out", "held_out"}),
            Interval(Integral, 2, None, closed="left"),
        ],
        "Method that predicts training rows without having seen them.",
    ),
    "mean_function": Parameter(
        [HasMethods(["fit", "predict"]), None],
        "Regressor that predicts the mean, which the Gaussian process then corrects.",
    ),
    "n_folds": Parameter(
        [Interval(Integral, 2, None, closed="left")], "Number of folds for cross-fitting."
    ),
    "n_refits": Parameter(
        [_NATURAL], "Number of times that the regressor is fitted again with the learned noise."
    ),
    "tails": Parameter(
        [StrOptions({"normal", "student", "empirical", "auto"})],
        "Shape of the distribution from which quantiles and intervals are computed.",
    ),
    # The machine.
    "memory_budget": Parameter(
        [_POSITIVE, _AUTO],
        'Memory that matrices may take, in bytes; "auto" uses what the machine has free.',
    ),
    "device": Parameter(
        [str], 'Device on which the fit runs; "auto" uses CUDA where it is available.'
    ),
    "dtype": Parameter(
        [StrOptions({"auto", "float32", "float64"})],
        "Precision of the matrix products in training.",
    ),
    "callbacks": Parameter(
        ["array-like", callable, None],
        "Functions called after each step or score with a `TrainingStep`; training ends "
        "when one returns a true value.",
    ),
    "max_seconds": Parameter(
        [_POSITIVE, None],
        "Time budget of the whole fit in seconds; when it runs out, the best state so far is kept.",
    ),
    "verbose": Parameter(["verbose"], "Whether to show a progress bar."),
}
