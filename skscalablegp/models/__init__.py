"""One folder a method."""

__all__: list[str] = []
