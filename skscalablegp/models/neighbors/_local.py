"""Batches of small Gaussian processes: a row given its neighbours, or a block of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from ...core.posteriors import without_own
from ...kernels import TorchKernel
from ...linalg.blocks import look_up
from ...linalg.gradients import GPProblem
from ...linalg.operators import fill_upper, kernel_of_sets, slope
from ...workers import map_in_order

# Matrix entries that are processed at a time; on a CPU, few enough for the cache of a core.
_CPU_BLOCK, _GPU_BLOCK = 2**19, 2**28
# Share of the prior variance below which a variance from single precision is mostly rounding error.
_RESOLVED = 1e-4
# Most jitter that is tried where a factorisation fails, relative to the median diagonal entry.
_LARGEST_JITTER = 1e-3
# Number of nearest rows from which the local size of errors is estimated.
NEAREST = 30
# Noise that keeps equal new rows from being singular, relative to the prior variance.
_SAME = 1e-12
# A diagonal entry that no row of a factor reaches in single precision.
_HUGE = 1e37


class Given(NamedTuple):
    """The posterior at the last row of each of b sets, given noisy observations of the others.

    Attributes
    ----------
    mean : Tensor of shape (b, t)
    variance, prior : Tensor of shape (b,)
        Posterior and prior variance of the latent function.
    factor : Tensor of shape (b, m, m)
        L, the Cholesky factor of the observations' covariance.
    half : Tensor of shape (b, m, 1 + t)
        L^-1 k and L^-1 Y, with k the covariances between the last row and the others.
    failed : Tensor of bool of shape (b,)
        Sets whose factorisation failed; only in single precision.
    """

    mean: Float[Tensor, "b t"]
    variance: Float[Tensor, " b"]
    prior: Float[Tensor, " b"]
    factor: Float[Tensor, "b m m"]
    half: Float[Tensor, "b m s"]
    failed: Bool[Tensor, " b"]

    def weights(self) -> Float[Tensor, "b m"]:
        """Weights of the observations in the mean."""
        upper, k = self.factor.mT, self.half[:, :, :1]
        return torch.linalg.solve_triangular(upper, k, upper=True)[:, :, 0]

    def resolves(self, variances: Float[Tensor, "b c"]) -> Bool[Tensor, " b"]:
        """Whether single precision resolves all of these variances of a set."""
        return ~self.failed & (variances >= _RESOLVED * self.prior[:, None]).all(1)


def condition(
    K: Float[Tensor, "b k k"], noise: Float[Tensor, "b m"], Y: Float[Tensor, "b m t"]
) -> Given:
    """The last row of each set given the others; m^3 / 3 operations for each set.

    Where a factorisation in double precision fails, jitter is added in growing steps.

    Raises
    ------
    torch.linalg.LinAlgError
        If jitter of a thousandth of the median diagonal entry is not enough.
    """
    H = K[:, :-1, :-1].clone()
    H.diagonal(dim1=1, dim2=2).add_(noise)
    L, info = torch.linalg.cholesky_ex(H)
    failed, fraction = info > 0, 1e-15
    while H.dtype == torch.float64 and failed.any():
        fraction *= 10
        if fraction > _LARGEST_JITTER:
            raise torch.linalg.LinAlgError(
                "The covariance of a row's neighbours has no Cholesky factor: increase the noise."
            )
        some = H[failed]
        # The median, since rows that do not count have a huge noise.
        added = fraction * some.diagonal(dim1=1, dim2=2).median(1, keepdim=True).values
        some.diagonal(dim1=1, dim2=2).add_(added)
        again, info = torch.linalg.cholesky_ex(some)
        L[failed] = again
        failed[failed.clone()] = info > 0
    half = torch.linalg.solve_triangular(L, torch.cat([K[:, :-1, -1:], Y], 2), upper=False)
    mean = (half[:, :, :1] * half[:, :, 1:]).sum(1)
    prior = K[:, -1, -1]
    variance = prior - half[:, :, 0].square().sum(1)
    return Given(mean, variance, prior, L, half, failed)


def condition_in_place(
    kernel: TorchKernel,
    theta: Float[Tensor, " p"],
    Z: Float[Tensor, "b k d"],
    noise: Float[Tensor, "b m"],
    Y: Float[Tensor, "b m t"],
) -> Given:
    """`condition` in single precision on a CPU, from the rows; it copies no matrix.

    The cross-covariances and the targets are further rows of the matrix that is factorised: those
    of its factor are L^-1 k and L^-1 Y. The kernel is evaluated on one side of the diagonal.
    """
    (b, k), t = Z.shape[:2], Y.shape[2]
    m, H = k - 1, torch.empty(b, k + t, k + t, dtype=torch.float32)
    fill_upper(kernel, theta, Z, H)
    H[:, :m, k:], H[:, m:, k:] = Y, 0.0
    diagonal = H.diagonal(dim1=1, dim2=2)
    prior = diagonal[:, m].clone()
    diagonal[:, :m] += noise
    diagonal[:, m:] = _HUGE
    # In the order of LAPACK, the upper triangle is the lower one.
    L, info = H.mT, torch.empty(b, dtype=torch.int32)
    torch.linalg.cholesky_ex(L, out=(L, info))
    half = L[:, m:, :m].mT
    mean = (half[:, :, :1] * half[:, :, 1:]).sum(1)
    variance = prior - half[:, :, 0].square().sum(1)
    return Given(mean, variance, prior, L[:, :m, :m], half, info > 0)


def gather(
    problem: GPProblem,
    theta: Float[Tensor, " p"],
    X: Float[Tensor, "b d"],
    near: Int[Tensor, "b m"],
) -> tuple[Float[Tensor, "b k d"], Float[Tensor, "b m"], Float[Tensor, "b m t"]]:
    """Neighbours with the row itself as the last, and the neighbours' noise and targets."""
    Z = problem.X[near]
    noise = problem.noise(theta, near.flatten()).reshape(near.shape)
    return torch.cat([Z, X[:, None]], 1), noise, problem.Y[near]


def starts(n: int, m: int, device: torch.device) -> tuple[range, int]:
    """Where batches of n systems of m equations begin, and how many systems a batch has."""
    step = max(1, (_CPU_BLOCK if device.type == "cpu" else _GPU_BLOCK) // (m + 1) ** 2)
    return range(0, n, step), step


class Shared(NamedTuple):
    """A process of a few weights v, u(x)' v, that all rows share; see `FullScale`.

    Attributes
    ----------
    features : callable
        u at some rows, (b, q).
    rows : Tensor of shape (n, q)
        u at all training rows.
    rest : Tensor of shape (n, t)
        The targets less the mean of u' v.
    mean : Tensor of shape (q, t)
        The mean of v.
    factor : Tensor of shape (q, q)
        The Cholesky factor of its precision.
    """

    features: Callable[[Tensor], Tensor]
    rows: Float[Tensor, "n q"]
    rest: Float[Tensor, "n t"]
    mean: Float[Tensor, "q t"]
    factor: Float[Tensor, "q q"]

    def half(self, h: Float[Tensor, "b q"]) -> Float[Tensor, "b q"]:
        """B with B B' the posterior covariance of h' v."""
        return torch.linalg.solve_triangular(self.factor, h.mT, upper=False).mT


class Predicted(NamedTuple):
    """Predictions of rows from their neighbours.

    Attributes
    ----------
    mean : Tensor of shape (b, t)
    variance : Tensor of shape (b,)
        Variance of the latent function.
    surprise : Tensor of shape (b,)
        Mean squared standardised error of the nearest rows, each given the nearer ones; one on
        average if the kernel and the noise suit the neighbourhood. Only with `errors`.
    own : Tensor of shape (b,)
        The part of the variance that is not due to the process which all rows share.
    """

    mean: Float[Tensor, "b t"]
    variance: Float[Tensor, " b"]
    surprise: Float[Tensor, " b"]
    own: Float[Tensor, " b"]


def predict(
    problem: GPProblem,
    theta: Float[Tensor, " p"],
    X: Float[Tensor, "b d"],
    near: Int[Tensor, "b m"],
    dtype: torch.dtype,
    errors: bool = True,
    shared: Shared | None = None,
) -> Predicted:
    """Rows given their neighbours, which are in the order of their distances.

    Rows whose variance single precision cannot resolve are computed again in double precision. With
    `errors`, so are those for which it cannot resolve the variance of one of the nearest rows given
    the nearer ones. With a process that all rows share, the neighbours predict what it leaves.
    """

    def answer(X: Tensor, near: Tensor, dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
        given, V = _given_near(problem, theta, X, near, dtype, shared)
        squares = given.half[:, :NEAREST, 1:].square().mean((1, 2))
        parts = given.mean, given.variance, squares, given.variance
        found = [part.double() for part in parts]
        if shared is not None and V is not None:
            found[0] = found[0] + V[:, -1].double() @ shared.mean
            h = _left_of_features(given, V).double()
            found[1] = found[1] + shared.half(h).square().sum(1)
        variances = given.variance[:, None]
        if errors:
            own = given.factor.diagonal(dim1=1, dim2=2)[:, :NEAREST].square()
            variances = torch.cat([variances, own], 1)
        return found, given.resolves(variances)

    found = Predicted(X.new_empty(len(X), problem.Y.shape[1]), *X.new_empty(3, len(X)))
    _fill(found, answer, X, near, dtype)
    return found


def dual_weights(
    problem: GPProblem,
    theta: Float[Tensor, " p"],
    X: Float[Tensor, "b d"],
    near: Int[Tensor, "b m"],
    dtype: torch.dtype,
) -> Float[Tensor, "b m t"]:
    """H^-1 Y of the neighbours of each row; m^3 / 3 operations for each.

    Those are computed again in double precision for which single precision cannot resolve the
    variance of one of the neighbours given those before it.
    """

    def answer(X: Tensor, near: Tensor, dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
        given, _ = _given_near(problem, theta, X, near, dtype, None)
        # A factor without gaps between its columns is solved with several times as fast.
        upper, half = given.factor.clone().mT, given.half[:, :, 1:]
        found = torch.linalg.solve_triangular(upper, half, upper=True).double()
        return [found], given.resolves(given.factor.diagonal(dim1=1, dim2=2).square())

    out = X.new_empty(*near.shape, problem.Y.shape[1])
    _fill([out], answer, X, near, dtype)
    return out


def _fill(
    out: Sequence[Tensor],
    answer: Callable[[Tensor, Tensor, torch.dtype], tuple[list[Tensor], Tensor]],
    X: Float[Tensor, "b d"],
    near: Int[Tensor, "b m"],
    dtype: torch.dtype,
) -> None:
    """Write the answers for all rows, block by block, and whether they are resolved.

    The answers are allocated before the blocks: between large matrices they would fragment the
    memory. Rows that single precision does not resolve are answered again in double precision.
    """
    begin, step = starts(len(X), near.shape[1], X.device)

    def write(start: int) -> None:
        rows, sets = X[start : start + step], near[start : start + step]
        found, resolved = answer(rows, sets, dtype)
        if dtype == torch.float32 and not resolved.all():
            again, _ = answer(rows[~resolved], sets[~resolved], torch.float64)
            for part, better in zip(found, again, strict=True):
                part[~resolved] = better
        for whole, part in zip(out, found, strict=True):
            whole[start : start + step] = part

    run_all(write, begin, X.device)


def run_all(write: Callable[[Any], None], items: Iterable[Any], device: torch.device) -> None:
    """Call a function for all items, without gradients, several at once on a CPU."""
    with torch.no_grad():
        for _ in map_in_order(write, items, device):
            pass


def _given_near(
    problem: GPProblem,
    theta: Float[Tensor, " p"],
    X: Float[Tensor, "b d"],
    near: Int[Tensor, "b m"],
    dtype: torch.dtype,
    shared: Shared | None,
) -> tuple[Given, Float[Tensor, "b k q"] | None]:
    """Rows given their neighbours, with the whole process's prior, and the features of both."""
    Z, noise, Y = gather(problem, theta, X, near)
    if shared is None and dtype == torch.float32 and X.device.type == "cpu":
        return condition_in_place(problem.kernel, theta, Z, noise, Y), None
    K = kernel_of_sets(problem.kernel, theta, Z, dtype)
    prior, V = K[:, -1, -1].clone(), None
    if shared is not None:
        Y = shared.rest[near]
        V = torch.cat([shared.rows[near], shared.features(X)[:, None]], 1).to(dtype)
        K.baddbmm_(V, V.mT, alpha=-1)
    return condition(K, noise.to(dtype), Y.to(dtype))._replace(prior=prior), V


def _left_of_features(given: Given, V: Float[Tensor, "b k q"]) -> Float[Tensor, "b q"]:
    """u(x) less the same combination of the neighbours' u as the mean takes of their targets."""
    return V[:, -1] - (given.weights()[:, None] @ V[:, :-1])[:, 0]


def left_out_moments(
    found: Predicted, Y: Float[Tensor, "b t"], noise: Float[Tensor, " b"]
) -> tuple[Float[Tensor, "b t"], Float[Tensor, " b"]]:
    """Means and latent variances of training rows, which neighbours without them predict.

    Each row's own target is taken out of the posterior of the weights that all rows share, to which
    it has contributed one observation of variance `own` plus noise. This is exact if all other rows
    are neighbours.
    """
    mean, total = without_own(Y, found.mean, found.variance - found.own, found.own + noise)
    return mean, total - noise


def chain(
    problem: GPProblem,
    theta: Float[Tensor, " p"],
    X: Float[Tensor, "b d"],
    near: Int[Tensor, "b m"],
    order: Int[Tensor, " b"],
    earlier: Int[Tensor, "b c"],
    counts: Bool[Tensor, "b c"],
    shared: Shared | None = None,
) -> Float[Tensor, "b s"]:
    r"""A factor of the rows' joint posterior covariance, by Vecchia's approximation.

    Given its training neighbours, each row i is a regression on some earlier new rows j:
    f_i = sum_j a_ij f_j + sqrt(d_i) e_i. The factor is (I - A)^-1 diag(sqrt(d)). It is exact if the
    neighbours are all training rows and every earlier row counts. Vecchia (1988); Katzfuss and
    Guinness (2021), section 3. Weights v that all rows share add h_i' v to row i, with h_i what the
    regression leaves of u(x_i); the factor then has a column for each weight, too.

    Parameters
    ----------
    order : Tensor of shape (b,)
        Numbers of the rows in the order in which they are conditioned.
    earlier : Tensor of shape (b, c)
        For each row, numbers of candidates among the other new rows.
    counts : Tensor of bool of shape (b, c)
        Which of them come earlier in the order; the others are left out.
    """
    m, A = near.shape[1], torch.zeros(len(X), len(X), dtype=X.dtype, device=X.device)
    d = X.new_empty(len(X))
    U = None if shared is None else shared.features(X)
    H = X.new_empty(len(X), 0 if U is None else U.shape[1])
    begin, step = starts(len(X), m + earlier.shape[1], X.device)
    with torch.no_grad():
        for start in begin:
            rows = slice(start, start + step)
            Z, noise, Y = gather(problem, theta, X[rows], near[rows])
            Z = torch.cat([Z[:, :-1], X[earlier[rows]], Z[:, -1:]], 1)
            K = kernel_of_sets(problem.kernel, theta, Z, X.dtype)
            V, prior = None, K[:, -1, -1:]
            if shared is not None and U is not None:
                V = torch.cat([shared.rows[near[rows]], U[earlier[rows]], U[rows, None]], 1)
                K = K - V @ V.mT
            # Huge noise leaves a row out; tiny noise keeps rows that appear twice from being
            # singular.
            free = prior * torch.where(counts[rows], _SAME, 1 / _SAME)
            nothing = Y.new_zeros(*free.shape, Y.shape[2])
            found = condition(K, torch.cat([noise, free], 1), torch.cat([Y, nothing], 1))
            w = torch.where(counts[rows], found.weights()[:, m:], 0.0)
            A[rows].scatter_add_(1, earlier[rows], w)
            d[rows] = found.variance.clamp_min(0)
            if V is not None:
                H[rows] = _left_of_features(found, V)
        steps = torch.eye(len(X), dtype=X.dtype, device=X.device) - A[order][:, order]
        own = d[order].sqrt().diag()
        right = own if shared is None else torch.cat([own, shared.half(H[order])], 1)
        half = torch.linalg.solve_triangular(steps, right, upper=False)
        out = torch.empty_like(half)
        out[order] = half
    return out


def left_out(
    problem: GPProblem,
    theta: Float[Tensor, " p"],
    rows: Int[Tensor, " s"],
    near: Int[Tensor, "s m"],
    eval_gradient: bool = True,
) -> tuple[float, Float[Tensor, " p"] | None]:
    r"""The mean of log p(y_i | y of the neighbours of i) over some rows, and its gradient.

    With w = H^-1 k, a = H^-1 y, r = y_i - k' a and s = k(x_i, x_i) - k' w + noise, the derivative
    is (r / s) dm + 1/2 (r^2 / s^2 - 1 / s) ds, where dm = a' dk - w' dH a and
    ds = dk(x_i, x_i) - 2 w' dk + w' dH w + dnoise. These are quadratic forms in the covariances of
    the set, so that the factorisation is the only step of order m^3. Rasmussen and Williams (2006),
    section 5.4.2.
    """

    def part(at: Tensor, rows: Tensor, near: Tensor) -> tuple[float, Tensor]:
        Z, noise, Y = gather(problem, at, problem.X[rows], near)
        own = gather(problem, at, problem.X[rows], rows[:, None])[1][:, 0]
        K = kernel_of_sets(problem.kernel, at, Z, Z.dtype)
        with torch.no_grad():
            found = condition(K, noise, Y)
            s = (found.variance + own)[:, None]
            r = problem.Y[rows] - found.mean
            value = -0.5 * float((r.square() / s + (2 * math.pi * s).log()).sum())
            solved = torch.linalg.solve_triangular(found.factor.mT, found.half, upper=True)
            w, v = solved[:, :, 0], (solved[:, :, 1:] @ (r / s)[:, :, None])[:, :, 0]
            beta = (r.square() / s.square() - 1 / s).sum(1, keepdim=True)
            left = torch.cat([w, -torch.ones_like(s)], 1)
            right = torch.cat([0.5 * beta * w - v, -0.5 * beta], 1)
            both = left * right
        noisy = torch.cat([noise, own[:, None]], 1)
        slopes = (left[:, None] @ K @ right[:, :, None]).sum() + (both * noisy).sum()
        return value, slopes

    return _mean_and_slope(part, theta, rows, near, eval_gradient)


def blocks(
    problem: GPProblem,
    theta: Float[Tensor, " p"],
    rows: Int[Tensor, " s"],
    near: Int[Tensor, "s m"],
    eval_gradient: bool = True,
) -> tuple[float, Float[Tensor, " p"] | None]:
    """The log marginal likelihood of blocks, divided by their rows, and its gradient.

    A block is a row and its neighbours. The gradient of one is 1/2 sum_ij (V V' - t H^-1)_ij dH_ij
    with V = H^-1 Y.
    """
    t, size = problem.Y.shape[1], near.shape[1] + 1

    def part(at: Tensor, rows: Tensor, near: Tensor) -> tuple[float, Tensor]:
        Z, noise, Y = gather(problem, at, problem.X[rows], torch.cat([near, rows[:, None]], 1))
        K = kernel_of_sets(problem.kernel, at, Z, Z.dtype)
        with torch.no_grad():
            found = condition(K, noise, Y)
            L, half = found.factor, found.half[:, :, 1:]
            log_det = 2 * L.diagonal(dim1=1, dim2=2).log().sum()
            constant = t * Y[:, :, 0].numel() * math.log(2 * math.pi)
            value = half.square().sum() + t * log_det + constant
            V = torch.linalg.solve_triangular(L.mT, half, upper=True)
            W = 0.5 * (V @ V.mT - t * torch.cholesky_inverse(L))
        slopes = (W * K[:, :-1, :-1]).sum() + (W.diagonal(dim1=1, dim2=2) * noise).sum()
        return -0.5 * float(value) / size, slopes / size

    return _mean_and_slope(part, theta, rows, near, eval_gradient)


def _mean_and_slope(
    part: Callable[[Tensor, Tensor, Tensor], tuple[float, Tensor]],
    theta: Float[Tensor, " p"],
    rows: Int[Tensor, " s"],
    near: Int[Tensor, "s m"],
    eval_gradient: bool,
) -> tuple[float, Float[Tensor, " p"] | None]:
    """The mean over rows of what `part` gives: a value, and a function to differentiate."""
    begin, step = starts(len(rows), near.shape[1], rows.device)

    def one(start: int) -> tuple[float, Tensor | None]:
        look_up()
        at = theta.detach().clone().requires_grad_(eval_gradient)
        with torch.set_grad_enabled(eval_gradient):
            value, slopes = part(at, rows[start : start + step], near[start : start + step])
        return value, slope(slopes, at) if eval_gradient else None

    values, grads = zip(*map_in_order(one, begin, rows.device), strict=True)
    n = len(rows)
    return sum(values) / n, sum(grads) / n if eval_gradient else None


@torch.no_grad()
def coarse_to_fine(points: Float[Tensor, "b n q"]) -> Int64[Tensor, "b n"]:
    """The order of `chain` for sets of points.

    It starts at the centre, and each next point is the one farthest from all before it.
    """
    away = torch.cdist(points, points)
    last = (points - points.mean(1, keepdim=True)).square().sum(2).argmin(1)
    order, least = [last], torch.full_like(away[:, 0], torch.inf)
    for _ in range(points.shape[1] - 1):
        at = last[:, None]
        row = away.gather(1, at[:, :, None].expand_as(away[:, :1]))[:, 0]
        least = torch.minimum(least, row).scatter(1, at, -1.0)
        last = least.argmax(1)
        order.append(last)
    return torch.stack(order, 1)
