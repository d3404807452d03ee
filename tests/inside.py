"""What tests of many parts need from inside the package, so that a move changes one line here."""

from skscalablegp._calls import shareable
from skscalablegp._clock import clock, now
from skscalablegp._compat import HAS_CALLBACKS, fit_context

__all__ = ["HAS_CALLBACKS", "clock", "fit_context", "now", "shareable"]
