# The public names of this package, each listed once: editors and type checkers read this file, and
# `__init__.py` imports each name from here when it is first used. An estimator is one line below.
from . import dask as dask
from . import datasets as datasets
from . import export as export
from . import files as files
from . import gradients as gradients
from . import inspection as inspection
from . import kernels as kernels
from . import likelihoods as likelihoods
from . import metrics as metrics
from . import preconditioners as preconditioners
from . import priors as priors
from . import solvers as solvers
from . import training as training
from . import truncation as truncation
from .export import as_botorch as as_botorch
from .export import draw_functions as draw_functions
from .export import export_onnx as export_onnx
from .export import to_torch as to_torch
from .files import load as load
from .files import save as save
from .meta import AutoGPClassifier as AutoGPClassifier
from .meta import AutoGPRegressor as AutoGPRegressor
from .meta import HeteroscedasticRegressor as HeteroscedasticRegressor
from .meta import LOVEPredictor as LOVEPredictor
from .meta import MeanFunctionRegressor as MeanFunctionRegressor
from .meta import StackedGPRegressor as StackedGPRegressor
from .models.deep import BSGDDKLRegressor as BSGDDKLRegressor
from .models.deep import MinimaxDKLRegressor as MinimaxDKLRegressor
from .models.deep import SCGDDKLRegressor as SCGDDKLRegressor
from .models.experts import PoERegressor as PoERegressor
from .models.fourier import RFFRegressor as RFFRegressor
from .models.fourier import SSRFFRegressor as SSRFFRegressor
from .models.grid import KISSGPRegressor as KISSGPRegressor
from .models.inducing import SGPRRegressor as SGPRRegressor
from .models.inducing import SVGPClassifier as SVGPClassifier
from .models.inducing import SVGPRegressor as SVGPRegressor
from .models.iterative import IterativeGPRegressor as IterativeGPRegressor
from .models.iterative import RRCGRegressor as RRCGRegressor
from .models.neighbors import NNGPRegressor as NNGPRegressor
from .models.sampled import QSGPClassifier as QSGPClassifier
from .models.sampled import QSGPRegressor as QSGPRegressor
from .models.sampled import QSRVMRegressor as QSRVMRegressor
from .workers import distribute as distribute

__version__: str
