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
        'A scikit-learn kernel, whose bounds, "fixed" included, are honoured.',
    ),
    "priors": Parameter(
        [dict, _AUTO, None],
        "Priors of hyperparameters by name, whose log density training adds to what it maximises.",
    ),
    "alpha": Parameter(
        [_NOT_NEGATIVE, "array-like"],
        "Known noise variance, added to the diagonal, in squared units of y; of the normalised "
        "target with normalize_y=True.",
    ),
    "min_noise": Parameter(
        [Interval(Real, 0, 10, closed="neither")],
        "Lower bound of the noise's standard deviation, in normalised units.",
    ),
    "likelihood": Parameter(
        [str, Likelihood],
        "The distribution of a target given the latent function.",
    ),
    "normalize_y": Parameter(
        ["boolean", _AUTO],
        "Centre the target and divide it by its standard deviation before training.",
    ),
    "standardize": Parameter(
        ["boolean"], "Centre the columns of X and divide them by their standard deviations."
    ),
    "copy_X_train": Parameter(["boolean"], "Keep a copy of X rather than X itself."),
    "n_targets": Parameter([_COUNT, None], "Number of target columns, checked against y."),
    "random_state": Parameter(
        ["random_state"], "Seed of all that is random in a fit; None draws a new one each time."
    ),
    # Training of the hyperparameters.
    "optimizer": Parameter(
        [str, callable, HasMethods(["maximize"]), None],
        "What moves the hyperparameters; None keeps them as they are.",
    ),
    "n_restarts_optimizer": Parameter(
        [_NATURAL], "Further starts of the optimiser, drawn uniformly within the bounds."
    ),
    "learning_rate": Parameter(
        [_STEP_SIZE, _AUTO], "Step size of the optimiser, where it has one."
    ),
    "max_iter": Parameter([_COUNT, _AUTO], "Most steps of training."),
    "max_epochs": Parameter([_COUNT, _AUTO], "Passes of training over the rows."),
    "n_iter_no_change": Parameter(
        [_COUNT, None],
        "Training ends after so many steps or scores without progress; None never ends it so.",
    ),
    "tol": Parameter([_NOT_NEGATIVE], "What a score must gain to count as progress."),
    "subset_size": Parameter(
        [_COUNT, _AUTO, None], "Rows of the exact fit from which training starts."
    ),
    "batch_size": Parameter([_COUNT, _AUTO], "Rows of a training step."),
    "warm_start": Parameter(["boolean"], "Whether a fit goes on from the last one."),
    "early_stopping": Parameter(
        ["boolean", _AUTO], "Whether rows are held out to choose the best parameters."
    ),
    "validation_fraction": Parameter([_SHARE], "Share of the rows that is held out."),
    # Linear solves.
    "solver": Parameter(
        [str, HasMethods(["init", "step"])], "What solves the linear systems of a training step."
    ),
    "preconditioner": Parameter(
        [str, None, HasMethods(["build"]), HasMethods(["solve"])],
        "What makes the linear systems easier for an iterative solver.",
    ),
    "solver_tol": Parameter([_POSITIVE], "Relative residual at which a linear solve ends."),
    "solver_max_epochs": Parameter(
        [_POSITIVE],
        "Budget of one linear solve in epochs; one epoch evaluates n^2 kernel entries.",
    ),
    "solver_warm_start": Parameter(
        ["boolean"], "Start each solve from the last step's solution, with frozen probes."
    ),
    "training_max_epochs": Parameter(
        [_POSITIVE, _AUTO, None],
        "Solver epochs that the training on all rows may take in all; None sets no limit.",
    ),
    "gradient": Parameter(
        [str, HasMethods(["estimate"])], "How the gradient of the likelihood is estimated."
    ),
    "n_probes": Parameter([_COUNT, _AUTO], "Probe vectors of the gradient's trace estimate."),
    "probes": Parameter(
        [StrOptions({"rademacher", "normal", "preconditioned"})],
        "Distribution of the probe vectors.",
    ),
    "n_draws": Parameter(
        [_COUNT], "Truncation points that each of the two solutions of a step is averaged over."
    ),
    "reorthogonalize": Parameter(
        ["boolean", _AUTO], "Keep conjugate gradients' residuals orthogonal by force."
    ),
    "truncation": Parameter(
        [str, HasMethods(["on"])], "Distribution of the term at which a series is cut."
    ),
    "posterior": Parameter(
        [StrOptions({"auto", "exact", "pathwise", "solve"})], "What answers predictive variances."
    ),
    # Basis functions.
    "n_components": Parameter(
        [_COUNT, _AUTO],
        "Number of basis functions; a random frequency gives two, a sine and a cosine.",
    ),
    "min_components": Parameter(
        [_COUNT], "Random Fourier functions, sines and cosines, that every step has."
    ),
    "component_step": Parameter(
        [_COUNT], "Random Fourier functions from one term of the series to the next."
    ),
    "component_batch_size": Parameter([_COUNT, _AUTO], "Basis functions of a draw."),
    "basis": Parameter(
        [StrOptions({"auto", "fourier", "rows"}), "array-like"],
        "The functions that make up the model.",
    ),
    "n_dense": Parameter(
        [_NATURAL, _AUTO], "Dense columns of the covariance's factor; the others are diagonal."
    ),
    "covariance": Parameter(
        [StrOptions({"support", "chevron"})], "What answers predictive variances after steps."
    ),
    "control_variate": Parameter(
        [StrOptions({"regression", "squares"}), None],
        "What lowers the variance of sampled steps.",
    ),
    "control_variate_rank": Parameter(
        [_COUNT, _AUTO], "Support rows, at which the function is known exactly."
    ),
    "inference": Parameter(
        [StrOptions({"auto", "exact", "stochastic"})], "Full-batch linear algebra, or steps."
    ),
    "variational_optimizer": Parameter([str], "What moves the belief about the weights."),
    "variational_learning_rate": Parameter([_STEP_SIZE, _AUTO], "Its step size."),
    "decay": Parameter([_RATE], "Share of the learning rates that is left at the last step."),
    "freeze": Parameter(
        [Interval(Real, 0, 1, closed="both")],
        "Share of the steps before hyperparameters move.",
    ),
    "max_precision": Parameter(
        [_POSITIVE], "Prior precision above which a function leaves the model."
    ),
    # Inducing points.
    "n_inducing": Parameter([_COUNT, _AUTO], "Number of inducing points."),
    "inducing": Parameter([str, "array-like"], "How the inducing points are chosen."),
    "optimize_inducing": Parameter(["boolean"], "Whether training moves the inducing points."),
    "calibrate": Parameter(
        ["boolean"], "Bring predictive distributions to their best leave-one-out score."
    ),
    # Neighbours.
    "n_neighbors": Parameter([_COUNT, _AUTO], "Training rows that predict a new row."),
    "objective": Parameter(
        [StrOptions({"leave_one_out", "blocks", "subset"})], "What the hyperparameters maximise."
    ),
    # Grids.
    "grid_size": Parameter(
        [_AUTO, Interval(Integral, 6, None, closed="left"), "array-like"],
        "Points of the grid along each column.",
    ),
    "structure": Parameter(
        [StrOptions({"auto", "product", "additive"})], "How columns share grids."
    ),
    "extrapolation": Parameter(
        [StrOptions({"extend", "error"})], "What happens to rows outside the grid."
    ),
    "variance_rank": Parameter([_COUNT, None], "Rank of the low-rank variances."),
    "max_variance_rank": Parameter([_COUNT, _AUTO], "Largest rank that is tried."),
    "variance_tol": Parameter(
        [_POSITIVE], "Error of the variances, as a share of the target's, that is accepted."
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
        "A network between the rows and the kernel: layer sizes, a torch module, or a callable "
        "that makes one for so many columns.",
    ),
    "activation": Parameter(
        [StrOptions({"relu", "leaky_relu", "elu", "gelu", "silu", "softplus", "tanh"})],
        "What follows each layer of a network that is given by its layer sizes.",
    ),
    "penalty": Parameter([_POSITIVE, callable], "Weight of the constraint of the saddle."),
    "penalty_scale": Parameter(
        [StrOptions({"relative", "published"})],
        "What the constraint of the saddle is measured against.",
    ),
    "exact_passes": Parameter(
        ["boolean"], "Whether scores also put what is known in closed form on its optimum."
    ),
    "dual_rate": Parameter([_RATE, _AUTO], "Step size of the ascent."),
    "averaging": Parameter([_RATE, _AUTO], "Weight of a batch in the running average."),
    "averaging_decay": Parameter(
        [Interval(Real, 0, 1, closed="both")], "How fast that weight falls with the steps."
    ),
    "batches": Parameter([StrOptions({"random", "neighbours"})], "Which rows make up a batch."),
    # Experts.
    "combination": Parameter(
        [StrOptions({"poe", "gpoe", "bcm", "rbcm", "grbcm"})],
        "How the experts' predictions become one.",
    ),
    "expert_size": Parameter([_COUNT, _AUTO], "Rows of an expert."),
    "partition": Parameter([StrOptions({"random", "kmeans"})], "How rows become parts."),
    "share_hyperparameters": Parameter(
        ["boolean"], "Whether all experts have the same hyperparameters."
    ),
    "n_jobs": Parameter([Integral, None], "Experts that are worked on at a time, as in joblib."),
    "estimator": Parameter([HasMethods(["fit", "predict"]), None], "The regressor below."),
    "noise_estimator": Parameter(
        [HasMethods(["fit", "predict"]), None], "What learns the size of errors."
    ),
    "residuals": Parameter(
        [
            StrOptions({"auto", "leave_one_out", "held_out"}),
            Interval(Integral, 2, None, closed="left"),
        ],
        "How rows are predicted that the regressor has not seen.",
    ),
    "mean_function": Parameter(
        [HasMethods(["fit", "predict"]), None],
        "What predicts the mean that the process corrects.",
    ),
    "n_folds": Parameter([Interval(Integral, 2, None, closed="left")], "Folds of cross-fitting."),
    "n_refits": Parameter(
        [_NATURAL], "Times that the regressor is fitted again under the noise that was learned."
    ),
    "tails": Parameter(
        [StrOptions({"normal", "student", "empirical", "auto"})],
        "Shape of quantiles and intervals.",
    ),
    # The machine.
    "memory_budget": Parameter(
        [_POSITIVE, _AUTO], 'Bytes that matrices may take; "auto" looks at the machine.'
    ),
    "device": Parameter([str], 'Where the fit runs; "auto" takes CUDA where there is one.'),
    "dtype": Parameter(
        [StrOptions({"auto", "float32", "float64"})], "Precision of the training's products."
    ),
    "callbacks": Parameter(
        ["array-like", callable, None],
        "Called after each step or score with a `TrainingStep`; a true value ends training.",
    ),
    "max_seconds": Parameter(
        [_POSITIVE, None], "Time budget of the whole fit; the best state so far is kept."
    ),
    "verbose": Parameter(["verbose"], "1 shows a progress bar."),
}
