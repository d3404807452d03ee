"""Fits and predictions on the workers of a Dask cluster.

:func:`fit` starts one rank on each worker that holds rows, and returns an ordinary fitted
estimator. :func:`predict` predicts each partition on the worker that holds it.
"""

try:
    import distributed as _distributed
except ImportError as _error:
    raise ImportError('skscalablegp.dask needs Dask: pip install "skscalablegp[dask]".') from _error

from ._fit import fit
from ._predict import predict

__all__ = ["fit", "predict"]
