def test_names_stand_for_distributions():
    from skscalablegp.linalg.truncation import resolve_truncation

    for name in ("exponential", "geometric", "reciprocal", "fixed"):
        assert name in type(resolve_truncation(name)).__name__.lower()
    own = FixedTruncation(7)
    assert resolve_truncation(own) is own
    with pytest.raises(ValueError, match="Unknown truncation 'poisson': use .*'exponential'"):
        resolve_truncation("poisson")
