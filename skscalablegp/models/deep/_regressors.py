"""Deep kernels trained by random batches: minimax, compositional, and the biased baseline.

The file is long because every class documents all of its parameters.
"""

from __future__ import annotations

from ...core import FitRun, ShardedSource
from ._base import DeepKernelRegressorBase
from ._batch import BatchGradient, MinibatchGradient, automatic_rate
from ._compositional import CompositionalGradient
from ._minimax import WINDOW, MinimaxGradient
from ._stepper import NeighbourBatches


class SCGDDKLRegressor(DeepKernelRegressorBase):
    """A deep kernel by compositional gradients; exact process up to 3,000 rows (``small_table``).

    The kernel is the inner product of features phi(x), a network followed by a kernel's own
    features; the prior is f(x) = phi(x)'w with w ~ N(0, I). The log marginal likelihood is a sum
    over rows plus log|Z'Z + s2 I|, whose gradient is computed from a running average of the
    batches' estimates of this matrix. A bias remains, because the expected inverse of such an
    average is too large: by 5% with averaging="auto", and by less with smaller values of
    `averaging`. ``fit_report_.slope_bias`` measures it: the relative error of the trace of the
    approximate inverse times the exact matrix, before the last exact pass. Training ends with one
    more exact pass over the rows. See :ref:`default_sizes`.

    Parameters
    ----------
    kernel : kernel instance, default=None
        Covariance function as a scikit-learn kernel, whose bounds (including "fixed") are
        respected. Its inputs are the network's outputs divided by the square root of their number
        (times 3 for stationary kernels, so that a length scale of 1 is a suitable start). Products
        of constants and DotProduct are exact; stationary kernels (RBF, Matern, RationalQuadratic)
        become random Fourier features. The noise is that of a WhiteKernel, in units of the
        normalised target, or is learned in addition to a kernel without one. None is
        ``ConstantKernel() * DotProduct()``, the linear kernel.
    n_components : int, default=1000
        Number of basis functions; each random frequency contributes two, a sine and a cosine. The
        kernel's products with a stationary factor share them equally. The exact columns of
        DotProduct and constants are added to this number, and a kernel of these alone ignores it.
    feature_extractor : "auto", int, array-like, callable, torch.nn.Module or None, default="auto"
        Network between the rows and the kernel: layer sizes, a torch module, or a callable that
        returns a module for a given number of columns. "auto" is two layers of 128. For up to 3,000
        rows such a network would mostly fit noise. There, with `kernel` at its default, "auto" uses
        no network but the exact process of the standardised columns, with a Matern kernel and one
        length scale per column. () and None apply the kernel to the standardised columns. The
        random weights of the first layer are divided by the length scales with which an exact
        process would begin; with many rows a column, simple models say which columns matter. A
        module is copied, and training starts from its current weights. The features of a row must
        not depend on other rows (batch norm) or on random numbers (dropout), unless the module is
        in ``eval()`` mode.
    normalize_y : bool or "auto", default="auto"
        Whether to subtract the target's mean and divide by its standard deviation before training.
        "auto" does so. Without it the prior mean is zero in the target's units, and the unit of the
        noise is the target's root mean square.
    small_table : {"exact", "method"}, default="exact"
        Whether the exact process replaces the method on tables of few rows. "exact" does so up to
        3,000 rows, unless `feature_extractor` or `kernel` is given. "method" never does.
    optimizer : str, callable or None, default="adam"
        Method that trains the hyperparameters; None keeps them at their initial values. It also
        trains the network. Names are "adam", "adamw", "adadelta", "adagrad", "rmsprop" and "sgd". A
        callable receives a list of parameter groups and returns a `torch.optim.Optimizer`. None
        also keeps the initial network and a noise variance of 0.1.
    max_epochs : int or "auto", default="auto"
        Maximum number of training passes over the rows. The learning rate falls to zero at the last
        one. "auto" takes about 12,000 steps of 64 rows, but at most 100 epochs; if these steps are
        fewer than 28 epochs, it takes 28, but at most 18,000 steps. `partial_fit` always takes one
        pass.
    batch_size : int or "auto", default="auto"
        Number of rows in a training step. "auto" is 64 for up to 100,000 rows and 256 for more.
    early_stopping : bool or "auto", default="auto"
        Whether rows are held out to choose the best parameters. The score is then the mean negative
        log density of these rows; otherwise it is the exact negative log marginal likelihood per
        row, which a network can overfit. The posterior is that of all rows, with the noise variance
        that suits the held-out rows. "auto" holds rows out if the table has between 200 and 100,000
        rows.
    validation_fraction : float, default=0.1
        Fraction of the rows that is held out.
    random_state : int, RandomState instance or None, default=None
        Seed for all random choices of a fit; None uses a new seed each time. It determines the
        initial network, the frequencies, the held-out rows and the batches.
    max_seconds : float or None, default=None
        Time budget of the whole fit in seconds. A model that would take longer is made smaller,
        with a warning; when the time runs out, the best state so far is kept.
    memory_budget : float or "auto", default="auto"
        Memory that matrices may take, in bytes; "auto" uses the free memory of the machine.
    device : str, default="auto"
        Device on which the fit runs; "auto" uses CUDA where it is available. Predictions run on the
        same device if it is available, and otherwise on the CPU.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Precision of the matrix products in training. "auto" is float64 for up to 1,000 rows and
        float32 for more. The last pass and predictions are in float64.
    callbacks : callable, list of callable or None, default=None
        Functions called after each step or score with a `TrainingStep`; training ends when one
        returns a true value. Here they are called after each score.
    checkpoint : str, path-like or None, default=None
        Folder of a file from which the same fit continues if its process was killed; the file is
        removed when the fit has ended. Its recorded seconds count towards `max_seconds`.
    verbose : int, default=0
        Whether to show a progress bar.
    min_noise : float, default=0.01
        Lower bound of the noise standard deviation, in units of the normalised target. It must be
        below 10. A WhiteKernel has bounds of its own.
    n_targets : int, default=None
        Number of target columns; a fit checks it against y.
    learning_rate : float or "auto", default="auto"
        Step size of the optimiser, for optimisers that have one. It is the initial step size, which
        falls to zero along a half cosine over all steps or the time budget. "auto" is 0.01 for
        Adam, times the square root of batch_size / 64 for smaller batches, and 1 for Adadelta.
    n_iter_no_change : int or None, default=None
        Number of steps or scores without progress after which training ends; None switches this
        rule off. It counts scores; a complete training has 20.
    tol : float, default=0.0001
        Smallest improvement of a score that counts as progress. Only `n_iter_no_change` uses it.
    activation : {"relu", "leaky_relu", "elu", "gelu", "silu", "softplus", "tanh"}, default="silu"
        Activation function after each layer of a network that is given by its layer sizes.
    exact_passes : bool, default=True
        Whether each score also sets the parameters that have a closed-form optimum to that optimum.
        These are the weights, the noise, the amplitude and the matrix that approximates F. With
        False the steps train them, as published, except at the start and for the posterior.
    averaging : float or "auto", default="auto"
        Weight of a batch in the running average. It is called b_t and lies in (0, 1]. "auto" is
        batch_size / (10 m) for m features. The paper uses 0.9, with which the average is almost the
        estimate of the last batch, as in BSGD.
    averaging_decay : float, default=0.0
        Exponent with which this weight decreases over the steps. The weight is divided by this
        power of the number of steps since the last exact pass.

    Attributes
    ----------
    kernel_ : kernel instance
        The trained scikit-learn kernel on the network's outputs.
    noise_variance_ : float
        The noise variance s2, in normalised units; that of a WhiteKernel if the kernel has one.
    coef_ : ndarray of shape (m, t) or None
        Posterior mean of the weights of the m features; None if "auto" uses no network. The last
        feature of a network is zero at the training rows and gives rows far from them the target's
        variance.
    coef_precision_cholesky_ : ndarray of shape (m, m) or None
        Lower Cholesky factor of the weights' posterior precision; None if there are no weights.
    log_marginal_likelihood_value_ : float
        The log marginal likelihood, exact for these features, in normalised units, summed over
        targets.
    n_iter_ : int
        Number of training steps; `partial_fit` counts those of its chunk.
    n_samples_seen_ : int
        Number of rows of `fit` and of later calls of `partial_fit`.
    history_ : dict of lists
        stage, iteration, theta (log hyperparameters, the noise variance included), objective (minus
        the score) and its name, residual, epochs and seconds of each score.
    fit_report_ : FitReport
        How the fit ended, the choices for "auto" with their reasons, ignored parameters, epochs,
        and seconds by stage.
    device_, dtype_ : str
        Device and precision of training.
    n_features_in_ : int
        Number of columns of X.
    feature_names_in_ : ndarray of shape (d,)
        Names of the columns, if X had any.

    See Also
    --------
    MinimaxDKLRegressor : The same model, trained by descent and ascent.
    BSGDDKLRegressor : The same model, trained by the marginal likelihoods of batches.

    Notes
    -----
    A step costs O(b m^2) and a pass of b rows through the network. The matrix is factorised, in
    O(m^3), after each tenth of the average's window, and each score costs O(n m^2). For each row a
    mean costs O(m) and a variance O(m^2). Memory in addition to the data is O(m^2) and one list of
    row numbers.

    References
    ----------
    N. Shoham, H. Avron, Unbiased Stochastic Optimization for Gaussian Processes on Finite
    Dimensional RKHS, section 3.2. M. Wang, E. X. Fang, H. Liu (2017), Stochastic compositional
    gradient descent, Mathematical Programming 161.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from skscalablegp import SCGDDKLRegressor
    >>> X, y = make_friedman1(n_samples=500, random_state=0)
    >>> model = SCGDDKLRegressor(feature_extractor=(32,), random_state=0).fit(X, y)
    >>> mean, std = model.predict(X[:2], return_std=True)
    >>> bool(model.score(X, y) > 0.95)
    True
    """

    def __init__(  # noqa: PLR0913 (one for each setting)
        self,
        kernel=None,
        *,
        n_components=1000,
        feature_extractor="auto",
        normalize_y="auto",
        small_table="exact",
        optimizer="adam",
        max_epochs="auto",
        batch_size="auto",
        early_stopping="auto",
        validation_fraction=0.1,
        random_state=None,
        max_seconds=None,
        memory_budget="auto",
        device="auto",
        dtype="auto",
        callbacks=None,
        checkpoint=None,
        verbose=0,
        min_noise=0.01,
        n_targets=None,
        learning_rate="auto",
        n_iter_no_change=None,
        tol=1e-4,
        activation="silu",
        exact_passes=True,
        averaging="auto",
        averaging_decay=0.0,
    ):
        self._set(locals())

    def _rule(self, batch_size: int, m: int, run: FitRun) -> BatchGradient:
        run.chose("averaging", automatic_rate(batch_size, m), f"a window of ten times {m} rows")
        return CompositionalGradient(self.averaging, self.averaging_decay)


class MinimaxDKLRegressor(DeepKernelRegressorBase):
    """A deep kernel by minimax training; exact process up to 3,000 rows (``small_table``).

    The kernel is the inner product of features phi(x), a network followed by a kernel's own
    features; the prior is f(x) = phi(x)'w with w ~ N(0, I). The log marginal likelihood is a sum
    over rows plus log|F|, F = Z'Z + s2 I. In the objective a matrix A replaces F, and a multiplier
    B penalises their difference. The objective is then a sum over rows, so that batches give
    unbiased gradients at any A and B. Its gradient is that of the likelihood at the saddle point,
    but noisy steps move A and B away from there. ``fit_report_.slope_bias`` measures the effect:
    the relative error of the trace of the approximate F^-1 times F, before the last exact pass.
    Training ends with one more exact pass over the rows. See :ref:`default_sizes`.

    Parameters
    ----------
    kernel : kernel instance, default=None
        Covariance function as a scikit-learn kernel, whose bounds (including "fixed") are
        respected. Its inputs are the network's outputs divided by the square root of their number
        (times 3 for stationary kernels, so that a length scale of 1 is a suitable start). Products
        of constants and DotProduct are exact; stationary kernels (RBF, Matern, RationalQuadratic)
        become random Fourier features. The noise is that of a WhiteKernel, in units of the
        normalised target, or is learned in addition to a kernel without one. None is
        ``ConstantKernel() * DotProduct()``, the linear kernel.
    n_components : int, default=1000
        Number of basis functions; each random frequency contributes two, a sine and a cosine. The
        kernel's products with a stationary factor share them equally. The exact columns of
        DotProduct and constants are added to this number, and a kernel of these alone ignores it.
    feature_extractor : "auto", int, array-like, callable, torch.nn.Module or None, default="auto"
        Network between the rows and the kernel: layer sizes, a torch module, or a callable that
        returns a module for a given number of columns. "auto" is two layers of 128. For up to 3,000
        rows such a network would mostly fit noise. There, with `kernel` at its default, "auto" uses
        no network but the exact process of the standardised columns, with a Matern kernel and one
        length scale per column. () and None apply the kernel to the standardised columns. The
        random weights of the first layer are divided by the length scales with which an exact
        process would begin; with many rows a column, simple models say which columns matter. A
        module is copied, and training starts from its current weights. The features of a row must
        not depend on other rows (batch norm) or on random numbers (dropout), unless the module is
        in ``eval()`` mode.
    normalize_y : bool or "auto", default="auto"
        Whether to subtract the target's mean and divide by its standard deviation before training.
        "auto" does so. Without it the prior mean is zero in the target's units, and the unit of the
        noise is the target's root mean square.
    small_table : {"exact", "method"}, default="exact"
        Whether the exact process replaces the method on tables of few rows. "exact" does so up to
        3,000 rows, unless `feature_extractor` or `kernel` is given. "method" never does.
    optimizer : str, callable or None, default="adam"
        Method that trains the hyperparameters; None keeps them at their initial values. It also
        trains the network. Names are "adam", "adamw", "adadelta", "adagrad", "rmsprop" and "sgd". A
        callable receives a list of parameter groups and returns a `torch.optim.Optimizer`. None
        also keeps the initial network and a noise variance of 0.1.
    max_epochs : int or "auto", default="auto"
        Maximum number of training passes over the rows. The learning rate falls to zero at the last
        one. "auto" takes about 12,000 steps of 64 rows, but at most 100 epochs; if these steps are
        fewer than 28 epochs, it takes 28, but at most 18,000 steps. `partial_fit` always takes one
        pass.
    batch_size : int or "auto", default="auto"
        Number of rows in a training step. "auto" is 64 for up to 100,000 rows and 256 for more.
    early_stopping : bool or "auto", default="auto"
        Whether rows are held out to choose the best parameters. The score is then the mean negative
        log density of these rows; otherwise it is the exact negative log marginal likelihood per
        row, which a network can overfit. The posterior is that of all rows, with the noise variance
        that suits the held-out rows. "auto" holds rows out if the table has between 200 and 100,000
        rows.
    validation_fraction : float, default=0.1
        Fraction of the rows that is held out.
    random_state : int, RandomState instance or None, default=None
        Seed for all random choices of a fit; None uses a new seed each time. It determines the
        initial network, the frequencies, the held-out rows and the batches.
    max_seconds : float or None, default=None
        Time budget of the whole fit in seconds. A model that would take longer is made smaller,
        with a warning; when the time runs out, the best state so far is kept.
    memory_budget : float or "auto", default="auto"
        Memory that matrices may take, in bytes; "auto" uses the free memory of the machine.
    device : str, default="auto"
        Device on which the fit runs; "auto" uses CUDA where it is available. Predictions run on the
        same device if it is available, and otherwise on the CPU.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Precision of the matrix products in training. "auto" is float64 for up to 1,000 rows and
        float32 for more. The last pass and predictions are in float64.
    callbacks : callable, list of callable or None, default=None
        Functions called after each step or score with a `TrainingStep`; training ends when one
        returns a true value. Here they are called after each score.
    checkpoint : str, path-like or None, default=None
        Folder of a file from which the same fit continues if its process was killed; the file is
        removed when the fit has ended. Its recorded seconds count towards `max_seconds`.
    verbose : int, default=0
        Whether to show a progress bar.
    min_noise : float, default=0.01
        Lower bound of the noise standard deviation, in units of the normalised target. It must be
        below 10. A WhiteKernel has bounds of its own.
    n_targets : int, default=None
        Number of target columns; a fit checks it against y.
    learning_rate : float or "auto", default="auto"
        Step size of the optimiser, for optimisers that have one. It is the initial step size, which
        falls to zero along a half cosine over all steps or the time budget. "auto" is 0.01 for
        Adam, times the square root of batch_size / 64 for smaller batches, and 1 for Adadelta.
    n_iter_no_change : int or None, default=None
        Number of steps or scores without progress after which training ends; None switches this
        rule off. It counts scores; a complete training has 20.
    tol : float, default=0.0001
        Smallest improvement of a score that counts as progress. Only `n_iter_no_change` uses it.
    activation : {"relu", "leaky_relu", "elu", "gelu", "silu", "softplus", "tanh"}, default="silu"
        Activation function after each layer of a network that is given by its layer sizes.
    penalty : float or callable, default=2.0
        Weight of the penalty term in the saddle-point problem. It is called mu and multiplies the
        difference between A and F, relative to F; from 1 on the constraint is exact. A function of
        the number of steps since the last exact pass gives a schedule.
    penalty_scale : {"relative", "published"}, default="relative"
        Scale relative to which the constraint of the saddle-point problem is measured. With
        "relative" the scale is F. With "published" it is the determinant of A; the constraint is
        then exact only for a penalty above the condition number of F.
    exact_passes : bool, default=True
        Whether each score also sets the parameters that have a closed-form optimum to that optimum.
        These are the weights, the noise, the amplitude and the matrix that approximates F. With
        False the steps train them, as published, except at the start and for the posterior.
    dual_rate : float or "auto", default="auto"
        Step size of the ascent in the saddle-point problem. It is the share, in (0, 1], by which
        one batch changes B. "auto" is batch_size / (400 m) for m features; the noise of batches
        then moves the saddle by at most a twentieth.

    Attributes
    ----------
    kernel_ : kernel instance
        The trained scikit-learn kernel on the network's outputs.
    noise_variance_ : float
        The noise variance s2, in normalised units; that of a WhiteKernel if the kernel has one.
    coef_ : ndarray of shape (m, t) or None
        Posterior mean of the weights of the m features; None if "auto" uses no network. The last
        feature of a network is zero at the training rows and gives rows far from them the target's
        variance.
    coef_precision_cholesky_ : ndarray of shape (m, m) or None
        Lower Cholesky factor of the weights' posterior precision; None if there are no weights.
    log_marginal_likelihood_value_ : float
        The log marginal likelihood, exact for these features, in normalised units, summed over
        targets.
    n_iter_ : int
        Number of training steps; `partial_fit` counts those of its chunk.
    n_samples_seen_ : int
        Number of rows of `fit` and of later calls of `partial_fit`.
    history_ : dict of lists
        stage, iteration, theta (log hyperparameters, the noise variance included), objective (minus
        the score) and its name, residual, epochs and seconds of each score.
    fit_report_ : FitReport
        How the fit ended, the choices for "auto" with their reasons, ignored parameters, epochs,
        and seconds by stage.
    device_, dtype_ : str
        Device and precision of training.
    n_features_in_ : int
        Number of columns of X.
    feature_names_in_ : ndarray of shape (d,)
        Names of the columns, if X had any.

    See Also
    --------
    SCGDDKLRegressor : The same model, trained by a running average.
    BSGDDKLRegressor : The same model, trained by the marginal likelihoods of batches.

    Notes
    -----
    A step costs O(b m^2) and a pass of two independent batches of b rows through the network. Each
    tenth of the multiplier's window costs O(m^3), and each score O(n m^2). For each row a mean
    costs O(m) and a variance O(m^2). Two points differ from the paper: the penalty is relative to
    the last exact F, and the ascent has a proximal term.
    ``skscalablegp.models.deep.MinimaxGradient`` describes both.

    References
    ----------
    N. Shoham, H. Avron, Unbiased Stochastic Optimization for Gaussian Processes on Finite
    Dimensional RKHS, section 3.1. J. Zhang, P. Xiao, R. Sun, Z.-Q. Luo (2020), A single-loop
    smoothed gradient descent-ascent algorithm for nonconvex-concave min-max problems, NeurIPS.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from skscalablegp import MinimaxDKLRegressor
    >>> X, y = make_friedman1(n_samples=500, random_state=0)
    >>> model = MinimaxDKLRegressor(feature_extractor=(32,), random_state=0).fit(X, y)
    >>> mean, std = model.predict(X[:2], return_std=True)
    >>> bool(model.score(X, y) > 0.95)
    True
    """

    def __init__(  # noqa: PLR0913 (one for each setting)
        self,
        kernel=None,
        *,
        n_components=1000,
        feature_extractor="auto",
        normalize_y="auto",
        small_table="exact",
        optimizer="adam",
        max_epochs="auto",
        batch_size="auto",
        early_stopping="auto",
        validation_fraction=0.1,
        random_state=None,
        max_seconds=None,
        memory_budget="auto",
        device="auto",
        dtype="auto",
        callbacks=None,
        checkpoint=None,
        verbose=0,
        min_noise=0.01,
        n_targets=None,
        learning_rate="auto",
        n_iter_no_change=None,
        tol=1e-4,
        activation="silu",
        penalty=2.0,
        penalty_scale="relative",
        exact_passes=True,
        dual_rate="auto",
    ):
        self._set(locals())

    def _rule(self, batch_size: int, m: int, run: FitRun) -> BatchGradient:
        run.chose(
            "dual_rate",
            automatic_rate(batch_size, m, WINDOW),
            f"a window of {WINDOW} times {m} rows",
        )
        return MinimaxGradient(self.penalty, self.dual_rate, self.penalty_scale)


class BSGDDKLRegressor(DeepKernelRegressorBase):
    """A deep kernel by biased gradients; exact process up to 3,000 rows (``small_table``).

    Each step follows the gradient of the exact log marginal likelihood of one batch as if the batch
    were the whole table. The bias of this gradient falls with the size of the batches; that of
    :class:`SCGDDKLRegressor` and :class:`MinimaxDKLRegressor` is far smaller. On 4,000 rows of pol
    the bias costs accuracy with batches of 16 rows, but with batches of 64 (linear kernel) and 512
    (Gaussian kernel) the test NLPD is better than that of both others. Training ends with one exact
    pass over the rows. See :ref:`default_sizes`.

    Parameters
    ----------
    kernel : kernel instance, default=None
        Covariance function as a scikit-learn kernel, whose bounds (including "fixed") are
        respected. Its inputs are the network's outputs divided by the square root of their number
        (times 3 for stationary kernels, so that a length scale of 1 is a suitable start). Products
        of constants and DotProduct are exact; stationary kernels (RBF, Matern, RationalQuadratic)
        become random Fourier features. The noise is that of a WhiteKernel, in units of the
        normalised target, or is learned in addition to a kernel without one. None is
        ``ConstantKernel() * DotProduct()``, the linear kernel.
    n_components : int, default=1000
        Number of basis functions; each random frequency contributes two, a sine and a cosine. The
        kernel's products with a stationary factor share them equally. The exact columns of
        DotProduct and constants are added to this number, and a kernel of these alone ignores it.
    feature_extractor : "auto", int, array-like, callable, torch.nn.Module or None, default="auto"
        Network between the rows and the kernel: layer sizes, a torch module, or a callable that
        returns a module for a given number of columns. "auto" is two layers of 128. For up to 3,000
        rows such a network would mostly fit noise. There, with `kernel` at its default, "auto" uses
        no network but the exact process of the standardised columns, with a Matern kernel and one
        length scale per column. () and None apply the kernel to the standardised columns. The
        random weights of the first layer are divided by the length scales with which an exact
        process would begin; with many rows a column, simple models say which columns matter. A
        module is copied, and training starts from its current weights. The features of a row must
        not depend on other rows (batch norm) or on random numbers (dropout), unless the module is
        in ``eval()`` mode.
    normalize_y : bool or "auto", default="auto"
        Whether to subtract the target's mean and divide by its standard deviation before training.
        "auto" does so. Without it the prior mean is zero in the target's units, and the unit of the
        noise is the target's root mean square.
    small_table : {"exact", "method"}, default="exact"
        Whether the exact process replaces the method on tables of few rows. "exact" does so up to
        3,000 rows, unless `feature_extractor` or `kernel` is given. "method" never does.
    optimizer : str, callable or None, default="adam"
        Method that trains the hyperparameters; None keeps them at their initial values. It also
        trains the network. Names are "adam", "adamw", "adadelta", "adagrad", "rmsprop" and "sgd". A
        callable receives a list of parameter groups and returns a `torch.optim.Optimizer`. None
        also keeps the initial network and a noise variance of 0.1.
    max_epochs : int or "auto", default="auto"
        Maximum number of training passes over the rows. The learning rate falls to zero at the last
        one. "auto" takes about 12,000 steps of 64 rows, but at most 100 epochs; if these steps are
        fewer than 28 epochs, it takes 28, but at most 18,000 steps. `partial_fit` always takes one
        pass.
    batch_size : int or "auto", default="auto"
        Number of rows in a training step. "auto" is 64 for up to 100,000 rows and 256 for more.
    early_stopping : bool or "auto", default="auto"
        Whether rows are held out to choose the best parameters. The score is then the mean negative
        log density of these rows; otherwise it is the exact negative log marginal likelihood per
        row, which a network can overfit. The posterior is that of all rows, with the noise variance
        that suits the held-out rows. "auto" holds rows out if the table has between 200 and 100,000
        rows.
    validation_fraction : float, default=0.1
        Fraction of the rows that is held out.
    random_state : int, RandomState instance or None, default=None
        Seed for all random choices of a fit; None uses a new seed each time. It determines the
        initial network, the frequencies, the held-out rows and the batches.
    max_seconds : float or None, default=None
        Time budget of the whole fit in seconds. A model that would take longer is made smaller,
        with a warning; when the time runs out, the best state so far is kept.
    memory_budget : float or "auto", default="auto"
        Memory that matrices may take, in bytes; "auto" uses the free memory of the machine.
    device : str, default="auto"
        Device on which the fit runs; "auto" uses CUDA where it is available. Predictions run on the
        same device if it is available, and otherwise on the CPU.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Precision of the matrix products in training. "auto" is float64 for up to 1,000 rows and
        float32 for more. The last pass and predictions are in float64.
    callbacks : callable, list of callable or None, default=None
        Functions called after each step or score with a `TrainingStep`; training ends when one
        returns a true value. Here they are called after each score.
    checkpoint : str, path-like or None, default=None
        Folder of a file from which the same fit continues if its process was killed; the file is
        removed when the fit has ended. Its recorded seconds count towards `max_seconds`.
    verbose : int, default=0
        Whether to show a progress bar.
    min_noise : float, default=0.01
        Lower bound of the noise standard deviation, in units of the normalised target. It must be
        below 10. A WhiteKernel has bounds of its own.
    n_targets : int, default=None
        Number of target columns; a fit checks it against y.
    learning_rate : float or "auto", default="auto"
        Step size of the optimiser, for optimisers that have one. It is the initial step size, which
        falls to zero along a half cosine over all steps or the time budget. "auto" is 0.01 for
        Adam, times the square root of batch_size / 64 for smaller batches, and 1 for Adadelta.
    n_iter_no_change : int or None, default=None
        Number of steps or scores without progress after which training ends; None switches this
        rule off. It counts scores; a complete training has 20.
    tol : float, default=0.0001
        Smallest improvement of a score that counts as progress. Only `n_iter_no_change` uses it.
    activation : {"relu", "leaky_relu", "elu", "gelu", "silu", "softplus", "tanh"}, default="silu"
        Activation function after each layer of a network that is given by its layer sizes.
    exact_passes : bool, default=True
        Whether each score also sets the parameters that have a closed-form optimum to that optimum.
        These are the weights, the noise, the amplitude and the matrix that approximates F. With
        False the steps train them, as published, except at the start and for the posterior.
    batches : {"random", "neighbours"}, default="random"
        Method that chooses the rows of a batch. They are random rows, or a random row and its
        nearest neighbours (sgGP; 15 neighbours with batch_size=16). Neighbours need a tree over all
        rows in memory.

    Attributes
    ----------
    kernel_ : kernel instance
        The trained scikit-learn kernel on the network's outputs.
    noise_variance_ : float
        The noise variance s2, in normalised units; that of a WhiteKernel if the kernel has one.
    coef_ : ndarray of shape (m, t) or None
        Posterior mean of the weights of the m features; None if "auto" uses no network. The last
        feature of a network is zero at the training rows and gives rows far from them the target's
        variance.
    coef_precision_cholesky_ : ndarray of shape (m, m) or None
        Lower Cholesky factor of the weights' posterior precision; None if there are no weights.
    log_marginal_likelihood_value_ : float
        The log marginal likelihood, exact for these features, in normalised units, summed over
        targets.
    n_iter_ : int
        Number of training steps; `partial_fit` counts those of its chunk.
    n_samples_seen_ : int
        Number of rows of `fit` and of later calls of `partial_fit`.
    history_ : dict of lists
        stage, iteration, theta (log hyperparameters, the noise variance included), objective (minus
        the score) and its name, residual, epochs and seconds of each score.
    fit_report_ : FitReport
        How the fit ended, the choices for "auto" with their reasons, ignored parameters, epochs,
        and seconds by stage.
    device_, dtype_ : str
        Device and precision of training.
    n_features_in_ : int
        Number of columns of X.
    feature_names_in_ : ndarray of shape (d,)
        Names of the columns, if X had any.

    See Also
    --------
    SCGDDKLRegressor : The same model with far less bias.
    MinimaxDKLRegressor : The same model with far less bias.

    Notes
    -----
    A step costs O(b^2 m + b^3) and a pass of b rows through the network; each score costs O(n m^2).

    References
    ----------
    H. Chen, L. Zheng, R. Al Kontar, G. Raskutti (2020), Stochastic gradient descent in correlated
    settings: a study on Gaussian processes, NeurIPS. N. Shoham, H. Avron, Unbiased Stochastic
    Optimization for Gaussian Processes on Finite Dimensional RKHS, section 4.2.

    Examples
    --------
    >>> from sklearn.datasets import make_friedman1
    >>> from skscalablegp import BSGDDKLRegressor
    >>> X, y = make_friedman1(n_samples=500, random_state=0)
    >>> model = BSGDDKLRegressor(feature_extractor=(32,), random_state=0).fit(X, y)
    >>> model.predict(X[:2]).shape
    (2,)
    """

    def __init__(  # noqa: PLR0913 (one for each setting)
        self,
        kernel=None,
        *,
        n_components=1000,
        feature_extractor="auto",
        normalize_y="auto",
        small_table="exact",
        optimizer="adam",
        max_epochs="auto",
        batch_size="auto",
        early_stopping="auto",
        validation_fraction=0.1,
        random_state=None,
        max_seconds=None,
        memory_budget="auto",
        device="auto",
        dtype="auto",
        callbacks=None,
        checkpoint=None,
        verbose=0,
        min_noise=0.01,
        n_targets=None,
        learning_rate="auto",
        n_iter_no_change=None,
        tol=1e-4,
        activation="silu",
        exact_passes=True,
        batches="random",
    ):
        self._set(locals())

    def _rule(self, batch_size: int, m: int, run: FitRun) -> BatchGradient:
        return MinibatchGradient()

    def _batches(self, source, size, generator):
        if self.batches == "neighbours":
            if isinstance(source, ShardedSource):
                raise ValueError(
                    'batches="neighbours" needs all rows in one process: use batches="random", or '
                    "distribute(rows='replicated')."
                )
            return lambda: NeighbourBatches(source, size, generator)
        return super()._batches(source, size, generator)
