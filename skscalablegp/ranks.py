"""One fit on several processes, which may be on several machines: see `distribute`."""

from .workers import RankError, Ranks

__all__ = ["RankError", "Ranks"]
