"""Loaders of real data sets, with the interface of `sklearn.datasets`."""

from skscalablegp.datasets._flights import fetch_flights
from skscalablegp.datasets._uci import fetch_uci

__all__ = ["fetch_flights", "fetch_uci"]
