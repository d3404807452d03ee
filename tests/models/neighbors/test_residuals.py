"""The correction of neighbours' predictions by left-out residuals, against dense algebra."""

import pickle

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from skscalablegp import NNGPRegressor, files, to_torch
from skscalablegp.core.training import Budget
from skscalablegp.models.neighbors import _plan, _posterior, _residuals
from skscalablegp.models.neighbors._posterior import NeighborPosterior
from skscalablegp.models.neighbors._residuals import LeaveOneOut

D, M = 4, 10
SCALES = np.linspace(1, 3, D)
KERNEL = ConstantKernel(1.3) * Matern(SCALES, nu=1.5) + WhiteKernel(0.01)


def table(n=1000, n_test=500, t=1, seed=0):
    """Rows and targets drawn from the process of the kernel."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n + n_test, D))
    y = np.linalg.cholesky(KERNEL(X)) @ rng.standard_normal((len(X), t))
    y = y[:, 0] if t == 1 else y
    return X[:n], y[:n], X[n:], y[n:]


def model(**settings):
    given = dict(kernel=KERNEL, optimizer=None, n_neighbors=M, random_state=0, dtype="float64")
    return NNGPRegressor(**(given | dict(residual_correction=True) | settings))


def conditioned(X, y, x, noise):
    """Mean, latent variance and weights of one row given these."""
    H = KERNEL.k1(X) + np.diag(noise)
    w = np.linalg.solve(H, KERNEL.k1(X, x[None])[:, 0])
    return w @ y, 1.3 - w @ KERNEL.k1(X, x[None])[:, 0], w


def nearest(X, x, m=M, leave=()):
    away = (((X - x) / SCALES) ** 2).sum(1)
    away[list(leave)] = np.inf
    return np.argsort(away)[:m]


def left_out(X, y, noise, j, without=()):
    """The residual of row j given its nearest others, of which some are then taken away."""
    near = [i for i in nearest(X, X[j], leave=[j]) if i not in without]
    return y[j] - conditioned(X[near], y[near], X[j], noise[near])[0]


@pytest.mark.parametrize("t", [1, 2])
@pytest.mark.parametrize("known", [False, True])
def test_predictions_are_those_of_neighbours_plus_their_mean_residual(t, known):
    X, y, X_test, _ = table(t=t)
    noise_variance = np.linspace(0.001, 0.1, len(X)) if known else None
    gp = model().fit(X, y, noise_variance=noise_variance)
    noise = 0.01 + (0.0 if noise_variance is None else noise_variance) * np.ones(len(X))
    mean, std = gp.predict(X_test[:40], return_std=True)
    weight, (shrink, typical) = gp.residual_weight_, gp._correction[:2]
    assert weight > 0.5 and shrink < 0.99 and 0.03 < typical < 0.5
    residuals = np.array([left_out(X, y, noise, j) for j in range(len(X))])
    # What is left of a row's residual without its own noise.
    residuals = (residuals.T * typical / (typical + noise)).T
    for i, x in enumerate(X_test[:40]):
        near = nearest(X, x)
        own, variance, _ = conditioned(X[near], y[near], x, noise[near])
        size = (1 - variance / 1.3) * min(1, variance / typical)
        corrected = own + weight * size * residuals[near].mean(0)
        assert_allclose(mean[i], corrected, rtol=1e-7, atol=1e-8)
        latent = variance * (1 - (1 - shrink) * size)
        assert_allclose(std[i] ** 2, latent + 0.01, rtol=1e-6)


def test_the_average_for_a_training_row_does_not_see_its_target():
    """Against residuals of the neighbours given their own ones without the row."""
    X, y, _, _ = table()
    noise = np.full(len(X), 0.01)
    gp = model().fit(X, y)
    rows = torch.arange(0, 1000, 10)
    posterior = gp._posterior()
    near, trust = posterior.others(rows), gp._correction[1] / (gp._correction[1] + 0.01)
    found = posterior.correction.left_out(rows, near)[:, 0].numpy() / trust
    naive = posterior.correction.average(near)[:, 0].numpy() / trust
    exact = [
        np.mean([left_out(X, y, noise, j, without=[i]) for j in some])
        for i, some in zip(rows.tolist(), near.numpy(), strict=True)
    ]
    wrong, error = np.abs(naive - exact).mean(), np.abs(found - exact).mean()
    assert error < 0.6 * wrong
    assert np.corrcoef(found, exact)[0, 1] > 0.95 > 0.9 > np.corrcoef(naive, exact)[0, 1]


def nlpd(gp, X, y):
    mean, std = gp.predict(X, return_std=True)
    return np.mean(0.5 * ((y - mean) / std) ** 2 + np.log(std))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_new_rows_gain_what_left_out_rows_say(seed):
    X, y, X_test, y_test = table(1500, 1500, seed=seed)
    gp, plain = model().fit(X, y), model(residual_correction=False).fit(X, y)
    assert plain.residual_weight_ == 0 and plain._correction is None
    gain = nlpd(plain, X_test, y_test) - nlpd(gp, X_test, y_test)
    assert gain > 0.01
    mean, std = gp.predict(X_test, return_std=True)
    assert 0.85 < np.mean(((y_test - mean) / std) ** 2) < 1.15


def test_the_factor_of_variances_is_no_new_scale():
    """A kernel three times too large stays as given, but for what the correction explains."""
    X, y, _, _ = table(1500)
    shrinks = []
    for scale in (1.0, 3.0):
        kernel = ConstantKernel(1.3 * scale) * KERNEL.k1.k2 + WhiteKernel(0.01 * scale)
        shrinks.append(model(kernel=kernel, local_scale=False).fit(X, y)._correction[0])
    assert 0.8 < shrinks[0] < 0.99
    assert shrinks[1] == pytest.approx(shrinks[0], abs=0.03)


def test_no_correction_without_a_gain():
    X, y, _, _ = table()
    noise = np.random.default_rng(1).standard_normal(len(y))
    fitted = model().fit(X, noise)
    assert fitted.residual_weight_ == 0 and fitted._correction is None
    alone = model(residual_correction=False).fit(X, noise)
    assert_array_equal(fitted.predict(X[:9]), alone.predict(X[:9]))


@pytest.mark.slow
def test_a_trial_comes_before_the_work(monkeypatch):
    """200 rows and their neighbours are fewer than a quarter of the table."""
    X, y, _, _ = table(4000, 1)
    noise = np.random.default_rng(1).standard_normal(len(y))
    predicted, predict = [], LeaveOneOut.predict

    def counted(self, rows):
        predicted.append(len(rows))
        return predict(self, rows)

    monkeypatch.setattr(LeaveOneOut, "predict", counted)
    settings = dict(kernel=None, optimizer="auto", n_neighbors=4, residual_correction="auto")
    gp = model(**settings, calibrate=False).fit(X, noise)
    assert len(predicted) == 1 and 600 < predicted[0] <= 1000
    assert "a trial of 200 rows gave it a weight of" in str(gp.fit_report_)
    predicted.clear()
    monkeypatch.setattr(_residuals, "_PROMISE", -9)
    gp = model(**settings).fit(X, y)
    assert sum(predicted) == 4000 and len(predicted) == 2
    assert gp.residual_weight_ > 0
    assert "residual_correction = True (it changes the log density" in str(gp.fit_report_)


def test_far_rows_have_the_prior():
    X, y, _, _ = table()
    gp = model().fit(X, y)
    assert gp.residual_weight_ > 0
    mean, std = gp.predict(np.full((1, D), 1e5), return_std=True)
    assert_allclose(mean, 0.0, atol=1e-9)
    assert_allclose(std**2, 1.3 + 0.01, rtol=1e-9)


def test_rows_without_noise_are_interpolated():
    X, _, X_test, _ = table()
    kernel = ConstantKernel(1.3) * Matern(SCALES, nu=1.5) + WhiteKernel(1e-8)
    rng = np.random.default_rng(0)
    y = np.linalg.cholesky(kernel(np.vstack([X, X_test]))) @ rng.standard_normal(1500)
    gp = model(kernel=kernel).fit(X, y[:1000])
    assert gp.residual_weight_ > 0.3
    assert_allclose(gp.predict(X), y[:1000], atol=1e-3)


def test_rows_of_much_noise_do_not_correct_others():
    X, y, X_test, _ = table()
    noise_variance = np.zeros(len(X))
    noise_variance[:4], y[:4] = 1e4, y[:4] + 100
    gp = model().fit(X, y, noise_variance=noise_variance)
    fewer = model().fit(X[4:], y[4:])
    assert gp.residual_weight_ == pytest.approx(fewer.residual_weight_, abs=0.05)
    assert_allclose(gp.predict(X_test), fewer.predict(X_test), atol=0.15)
    assert np.abs(gp.predict(X_test) - fewer.predict(X_test)).mean() < 0.005


def test_why_there_is_none_is_in_the_report():
    X, y, _, _ = table()
    gp = model(residual_correction="auto").fit(X, y)
    assert gp.residual_weight_ == 0
    assert "residual_correction = False (the hyperparameters are given)" in str(gp.fit_report_)
    assert "residual_correction" not in model().fit(X, y).fit_report_.ignored
    gp = model(n_inducing=20).fit(X, y)
    assert gp.residual_weight_ == 0 and "residual_correction" in gp.fit_report_.ignored
    noise = np.random.default_rng(1).standard_normal(len(y))
    assert "log density" in model().fit(X, noise).fit_report_.ignored["residual_correction"]
    with pytest.warns(ConvergenceWarning, match="max_seconds"):
        gp = model(optimizer="auto", residual_correction="auto", max_seconds=1e-3).fit(X, y)
    assert gp.residual_weight_ == 0
    assert not gp.fit_report_.choices["residual_correction"].value


@pytest.mark.parametrize("asked", ["auto", True])
def test_auto_leaves_out_no_more_rows_than_pay(monkeypatch, asked):
    X, y, _, _ = table(600)
    settings = dict(optimizer="auto", max_iter=1, n_centers=50, residual_correction=asked)
    monkeypatch.setattr(_plan, "_MOST_LEFT_OUT", 600 * M)
    few, many = (model(n_neighbors=m, **settings).fit(X, y) for m in (M, M + 1))
    assert "leave-one-out residuals" in few.fit_report_.seconds
    assert ("leave-one-out residuals" in many.fit_report_.seconds) == (asked is True)
    if asked == "auto":
        why = many.fit_report_.choices["residual_correction"].reason
        assert "predicting each of 600 rows from 11 others would take long" in why


def test_a_small_time_budget_leaves_it_out(monkeypatch):
    X, y, _, _ = table(900, 1)
    clock = iter(range(100))
    monkeypatch.setattr(Budget, "seconds", property(lambda self: next(clock)))
    posterior = model(residual_correction=False).fit(X, y)._posterior()
    found, why = LeaveOneOut(posterior, Budget(4.0), torch.Generator()).find()
    assert found is None and "too small to predict every row" in why
    found, why = LeaveOneOut(posterior, Budget(), torch.Generator()).find()
    assert found is not None


def test_a_trial_promises_nothing_that_the_time_budget_does_not_allow():
    X, y, _, _ = table(900, 1)
    posterior = model(residual_correction=False).fit(X, y)._posterior()
    for limit, gain in ((None, 0.5 * (3.0**2 - 1) / 200), (1e6, 0.0)):
        some = LeaveOneOut(posterior, Budget(limit), torch.Generator())
        assert some.gain == 0
        some.trial, some.seconds = _residuals.Judged(1.0, 0.9, 3.0, 0.0, 0.0), 1e4
        assert some.promises and some.gain == gain


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (torch.linalg.LinAlgError("singular"), "a matrix has no Cholesky factor"),
        (MemoryError("too much"), "memory ran out"),
        (RuntimeError("can't allocate memory: you tried to allocate 9 bytes"), "memory ran out"),
        (FloatingPointError("overflow"), "a number is not finite"),
    ],
)
def test_a_failure_to_leave_rows_out_costs_only_the_correction(monkeypatch, error, words):
    X, y, X_test, _ = table()

    def broken(self, rows):
        raise error

    monkeypatch.setattr(NeighborPosterior, "left_out", broken)
    gp = model().fit(X, y)
    assert f"could not be left out: {words}" in gp.fit_report_.ignored["residual_correction"]
    plain = model(residual_correction=False).fit(X, y)
    assert_array_equal(gp.predict(X_test), plain.predict(X_test))


@pytest.mark.slow
def test_copies_files_and_processes_have_it(tmp_path):
    X, y, X_test, _ = table()
    gp = model().fit(X, y)
    expected = gp.predict(X_test, return_std=True)
    for other in (pickle.loads(pickle.dumps(gp)), model(n_jobs=2).fit(X, y)):
        assert_array_equal(other.predict(X_test, return_std=True), expected)
    for compact in (False, True):
        files.save(gp, tmp_path / "model", compact=compact)
        again = files.load(tmp_path / "model")
        assert again.residual_weight_ == gp.residual_weight_
        assert_array_equal(again.predict(X_test, return_std=True), expected)


def test_the_module_and_functions_have_it():
    X, y, X_test, _ = table(t=2)
    gp = model(local_scale=False).fit(X, y)
    mean, std = gp.predict(X_test[:30], return_std=True)
    found = to_torch(gp)(torch.tensor(X_test[:30]))
    assert_allclose(found[0], mean, rtol=1e-6, atol=1e-7)
    plain, x = model(residual_correction=False, local_scale=False).fit(X, y), X_test[:5]
    # The same draws, which the correction moves by the same amount.
    draws = [g._posterior().functions(3, torch.Generator().manual_seed(0)) for g in (gp, plain)]
    with torch.no_grad():
        moved = draws[0](torch.tensor(x)) - draws[1](torch.tensor(x))
    expected = gp.predict(x) - plain.predict(x)
    assert np.abs(expected).max() > 0.01
    assert_allclose(moved, np.repeat(expected[:, :, None], 3, 2), rtol=1e-4, atol=1e-5)


def test_added_rows_have_residuals_of_their_own(monkeypatch):
    monkeypatch.setattr(_posterior, "_ADDED_ROWS", 30)
    X, y, X_test, _ = table()
    gp = model().fit(X[:900], y[:900])
    weight, known = gp.residual_weight_, gp._correction[2].copy()
    typical = gp._correction[1]
    gp.partial_fit(X[900:], y[900:])
    assert gp.residual_weight_ == weight and gp._correction[2].shape == (1000, 1)
    assert_array_equal(gp._correction[2][:900], known)
    noise = np.full(1000, 0.01)
    expected = [left_out(X, y, noise, j) for j in range(900, 1000)]
    found = gp._correction[2][900:, 0] * (typical + 0.01) / typical
    assert_allclose(found, expected, rtol=1e-6, atol=1e-8)
    again = pickle.loads(pickle.dumps(gp))
    assert_array_equal(again.predict(X_test), gp.predict(X_test))


def test_an_added_row_is_left_out_of_its_own_prediction():
    X, y, _, _ = table()
    found, rows = [], torch.tensor([999])
    for change in (0.0, 1.0):
        gp = model().fit(X[:999], y[:999]).partial_fit(X[999:], y[999:] + change)
        Y, posterior = torch.tensor(y[999:, None] + change), gp._posterior()
        nothing = torch.zeros(1, dtype=torch.float64)
        found.append(posterior.leave_one_out(rows, torch.tensor(X[999:]), Y, nothing)[0])
    assert_allclose(found[0], found[1], rtol=1e-9)


@pytest.mark.parametrize("changed", [dict(dtype="float32"), dict(n_neighbors=M + 2)])
def test_added_rows_in_another_precision_or_with_more_neighbours(changed):
    X, y, X_test, _ = table()
    gp = model().fit(X[:900], y[:900]).set_params(**changed).partial_fit(X[900:], y[900:])
    if "dtype" in changed:
        assert gp.residual_weight_ > 0 and len(gp._correction[2]) == 1000
        both = model().fit(X[:900], y[:900]).partial_fit(X[900:], y[900:])
        assert_allclose(gp.predict(X_test), both.predict(X_test), atol=1e-3)
    else:
        assert gp.residual_weight_ == 0 and gp._correction is None
        plain = model(residual_correction=False, **changed).fit(X, y)
        assert_allclose(gp.predict(X_test), plain.predict(X_test), rtol=1e-6, atol=1e-8)


def test_rows_are_left_out_close_ones_after_each_other():
    X, y, _, _ = table(2000)
    posterior = model(residual_correction=False).fit(X, y)._posterior()
    rows = torch.randperm(2000, generator=torch.Generator().manual_seed(0))[:1500]
    asked = []

    class Recorded:
        problem, others = posterior.problem, posterior.others
        n_neighbors, noises = posterior.n_neighbors, posterior.noises
        ordered = posterior.ordered

        def left_out(self, rows):
            asked.append(rows)
            return posterior.left_out(rows)

    found = LeaveOneOut(Recorded(), Budget(), torch.Generator().manual_seed(1))
    assert found.predict(rows)
    assert_array_equal(torch.cat(asked).sort().values, rows.sort().values)

    def steps(rows):
        return float(np.square(X[rows[1:]] - X[rows[:-1]]).sum(1).mean())

    # The first rows, which give the typical variance, are random.
    first, others = asked[0], torch.cat(asked[1:])
    assert len(first) == 256 and steps(others) < 0.7 * steps(first)
    assert abs(float(X[first].mean())) < 0.2


def test_the_gain_of_a_trial_is_that_of_an_observation():
    """Equal rows are one row, whose mean has less noise than each of them."""
    X, y, _, _ = table(300)
    rng = np.random.default_rng(2)
    many = np.repeat(np.arange(300), rng.integers(1, 9, 300))
    noisy = y[many] + rng.standard_normal(len(many))
    kernel = KERNEL.k1 + WhiteKernel(1.0)
    gp = model(kernel=kernel, residual_correction=False).fit(X[many], noisy)
    found = LeaveOneOut(gp._posterior(), Budget(), torch.Generator().manual_seed(1))
    every = torch.arange(300)
    assert found.predict(every)
    judged = found.judge(every)
    place = {row.tobytes(): i for i, row in enumerate(gp.X_train_)}
    counts = np.bincount([place[row.tobytes()] for row in X[many]])
    v = found.variance.numpy()
    assert judged.share == pytest.approx(np.mean((v + 1 / counts) / (v + 1)), rel=1e-6)
    found.trial = judged._replace(evidence=3.0)
    assert found.gain == pytest.approx(judged.share * 0.5 * 8 / 200)
