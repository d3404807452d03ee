"""One folder a method."""
