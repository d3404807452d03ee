"""Names, constraints, defaults and docstrings of every public estimator, against the one table."""

import ast
import inspect
import re

import named
from sklearn.utils._param_validation import make_constraint

from skscalablegp.core import PARAMETERS

TABLE = named.module("PARAMETERS")

# What every estimator has, whatever it is.
EVERYWHERE = (
    "random_state",
    "memory_budget",
    "device",
    "dtype",
    "callbacks",
    "max_seconds",
    "verbose",
)


# name -> the sentence with which every description begins, from the docstring of the table.
MEANINGS = {
    name: " ".join(text.split())
    for name, text in re.findall(r"^(\w+)\n((?:    .*\n)+)", TABLE.__doc__, re.M)
}


def documented(cls):
    """name -> (type line, first words) of the Parameters section, in order."""
    doc = inspect.getdoc(cls)
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^\w[\w ]*\n-+\n)", doc, re.M | re.S)[1]
    # A type may go on behind a backslash.
    section = re.sub(r"\s*\\\n\s+", " ", section)
    entries = re.findall(r"^(\w+) : (.*)\n((?:    .*\n|\n)*)", section, re.M)
    return {name: (kind, " ".join(text.split())) for name, kind, text in entries}


class ParameterContract:
    """Mixed into a test class that parametrises ``cls`` over the public classes."""

    def signature(self, cls):
        return {
            name: parameter.default
            for name, parameter in inspect.signature(cls).parameters.items()
            if name != "self"
        }

    def test_every_name_is_in_the_table_with_its_rule(self, cls):
        given = self.signature(cls)
        assert not [name for name in given if name not in PARAMETERS]
        assert set(cls._parameter_constraints) == set(given)
        auto = TABLE._AUTO
        for name, default in given.items():
            rule, whole = cls._parameter_constraints[name], PARAMETERS[name]
            assert [r for r in whole if r is not auto or default == "auto"] == rule, name

    def test_the_order_is_that_of_the_table(self, cls):
        """The model, training, solves, limits, and the rest; positional parameters come first."""
        given = inspect.signature(cls).parameters.values()
        order = [p.name for p in given if p.kind is p.KEYWORD_ONLY]
        assert order == [name for name in PARAMETERS if name in order]

    def test_signatures_are_short(self, cls):
        """Types that say nothing only lengthen what ``help`` shows."""
        calls = (cls, getattr(cls, "predict", None), getattr(cls, "predict_interval", None))
        for call in filter(None, calls):
            assert "Any" not in str(inspect.signature(call))

    def test_auto_is_accepted_where_it_is_documented(self, cls):
        for name, (kind, _) in documented(cls).items():
            rules = [make_constraint(rule) for rule in cls._parameter_constraints[name]]
            accepted = any(rule.is_satisfied_by("auto") for rule in rules)
            if accepted and str not in cls._parameter_constraints[name]:
                assert '"auto"' in kind, name
            assert accepted or '"auto"' not in kind, name

    def test_what_all_have(self, cls):
        given = self.signature(cls)
        assert not [name for name in EVERYWHERE if name not in given]
        assert given["random_state"] is None and given["device"] == given["dtype"] == "auto"
        assert given["callbacks"] is None and given["max_seconds"] is None

    def test_no_class_attribute_poses_as_a_parameter(self, cls):
        own = self.signature(cls)
        posing = [name for name in PARAMETERS if name not in own and hasattr(cls, name)]
        assert not posing

    def test_docstrings_are_the_tables(self, cls):
        given, written = self.signature(cls), documented(cls)
        assert list(written) == list(given)
        for name, default in given.items():
            kind, text = written[name]
            kind = " ".join(kind.split())
            shown = kind.rpartition(", default=")[2]
            assert ast.literal_eval(shown) == default, (name, kind)
            meaning = MEANINGS[name]
            assert text.startswith(meaning), f"{name}: {text[:100]!r} does not begin {meaning!r}"
