"""Baselines of compare.py: three regressors with a time budget and a seed.

`budget` is a callable: true when the time is up.
"""

import numpy as np


class HistGradientBoostingRegressor:
    """Gradient boosting for the mean, and once more for each quantile."""

    LEVELS = np.array([0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.975])

    def __init__(self, budget, seed):
        self.seed = seed

    def fit(self, X, y):
        from sklearn.ensemble import HistGradientBoostingRegressor as Boosting
        from sklearn.model_selection import train_test_split

        X_fit, X_held, y_fit, y_held = train_test_split(X, y, test_size=0.1, random_state=self.seed)
        held = Boosting(random_state=self.seed).fit(X_fit, y_fit).predict(X_held)
        self.std = np.sqrt(np.mean((y_held - held) ** 2))
        self.mean = Boosting(random_state=self.seed).fit(X, y)
        self.models = [
            Boosting(loss="quantile", quantile=level, random_state=self.seed).fit(X, y)
            for level in self.LEVELS
        ]
        return self

    def distribution(self, X):
        # Models of different levels know nothing of each other and may cross: sort them.
        quantiles = np.sort(np.column_stack([model.predict(X) for model in self.models]), axis=1)
        return dict(mean=self.mean.predict(X), std=np.full(len(X), self.std), quantiles=quantiles)

    def score_quantiles(self, y, quantiles):
        """CRPS is twice the pinball loss, integrated over the levels; coverage needs no normal."""
        error = y[:, None] - quantiles
        loss = np.maximum(self.LEVELS * error, (self.LEVELS - 1) * error).mean(axis=0)
        # The loss falls to zero at the levels 0 and 1 of a bounded target.
        levels, loss = np.r_[0.0, self.LEVELS, 1.0], np.r_[0.0, loss, 0.0]
        inside = (quantiles[:, 0] <= y) & (y <= quantiles[:, -1])
        return dict(
            crps=round(2 * float(np.trapezoid(loss, levels)), 5),
            coverage95=round(float(inside.mean()), 5),
        )


class GaussianProcessRegressor:
    """scikit-learn's exact regression on 2,000 random rows, optimised until the time is up."""

    ROWS = 2000

    def __init__(self, budget, seed):
        self.over, self.seed = budget, seed

    def fit(self, X, y):
        from sklearn.gaussian_process import GaussianProcessRegressor as Exact

        from skscalablegp.kernels import default_kernel

        keep = np.random.RandomState(self.seed).permutation(len(X))[: self.ROWS]
        self.n_rows_ = len(keep)
        self.model = Exact(default_kernel(X.shape[1]), optimizer=self.maximize)
        self.model.fit(X[keep], y[keep])
        return self

    def maximize(self, objective, theta, bounds):
        """scikit-learn's own optimiser, with an end."""
        from scipy.optimize import minimize

        best = [np.inf, theta]

        def negative(point):
            value, grad = objective(point)
            if value < best[0]:
                best[:] = value, point.copy()
            if self.over():
                raise TimeoutError
            return value, grad

        try:
            minimize(negative, theta, jac=True, method="L-BFGS-B", bounds=bounds)
        except TimeoutError:
            self.fit_report_ = {"status": "max_seconds"}
        return best[1], best[0]

    def predict(self, X, return_std=True):
        blocks = [self.model.predict(X[i : i + 1000], True) for i in range(0, len(X), 1000)]
        return tuple(np.concatenate(parts) for parts in zip(*blocks, strict=True))


class GPyTorchSVGP:
    """512 inducing points, 30 epochs of Adam on batches of 1,024 rows, or until the time is up."""

    def __init__(self, budget, seed):
        import gpytorch

        self.gpytorch, self.over, self.seed = gpytorch, budget, seed

    def fit(self, X, y, inducing=512, epochs=30, batch=1024):
        import torch

        gpytorch = self.gpytorch
        torch.manual_seed(self.seed)
        X, y = (torch.tensor(part, dtype=torch.float32) for part in (X, y))
        self.model = self.build(X[torch.randperm(len(X))[:inducing]].clone())
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood()
        objective = gpytorch.mlls.VariationalELBO(self.likelihood, self.model, len(X))
        parameters = [*self.model.parameters(), *self.likelihood.parameters()]
        adam = torch.optim.Adam(parameters, lr=0.01)
        for _ in range(epochs):
            for rows in torch.randperm(len(X)).split(batch):
                adam.zero_grad()
                (-objective(self.model(X[rows]), y[rows])).backward()
                adam.step()
                if self.over():
                    self.fit_report_ = {"status": "max_seconds"}
                    return self
        return self

    def build(self, Z):
        gpytorch = self.gpytorch

        class Sparse(gpytorch.models.ApproximateGP):
            def __init__(self):
                q = gpytorch.variational.CholeskyVariationalDistribution(len(Z))
                super().__init__(gpytorch.variational.VariationalStrategy(self, Z, q))
                self.mean_module = gpytorch.means.ZeroMean()
                matern = gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=Z.shape[1])
                self.covar_module = gpytorch.kernels.ScaleKernel(matern)

            def forward(self, x):
                normal = gpytorch.distributions.MultivariateNormal
                return normal(self.mean_module(x), self.covar_module(x))

        return Sparse()

    def predict(self, X, return_std=True):
        import torch

        self.model.eval()
        self.likelihood.eval()
        with torch.no_grad():
            blocks = torch.tensor(X, dtype=torch.float32).split(1024)
            parts = [self.likelihood(self.model(block)) for block in blocks]
        mean = torch.cat([part.mean for part in parts]).double().numpy()
        return mean, torch.cat([part.stddev for part in parts]).double().numpy()
