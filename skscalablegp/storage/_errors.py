"""The error about files that are no models, or not any more."""


class ModelFileError(ValueError):
    """A file that cannot be loaded: damaged, of another kind, or of a later version.

    Examples
    --------
    >>> import tempfile
    >>> from skscalablegp.files import ModelFileError, load
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     try:
    ...         load(file.name)
    ...     except ModelFileError as error:
    ...         print("refused")
    refused
    """
