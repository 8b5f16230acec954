import pytest

from formula.evaluate import evaluate


def test_products_before_sums():
    assert evaluate("2 + 3 * 4") == 14
    assert evaluate("(2 + 3) * 4") == 20
    assert evaluate("10 - 4") == 6


def test_powers_group_to_the_right():
    assert evaluate("2 ^ 3 ^ 2") == 512


def test_functions_and_names():
    assert evaluate("max(width, 3) * min(2, 5)", width=7) == 14
    assert evaluate("area / 2", area="width * height", width=3, height=4) == 6


def test_names_that_refer_to_each_other():
    with pytest.raises(RecursionError):
        evaluate("a", a="b + 1", b="a + 1")


@pytest.mark.parametrize("text", ["1 +", "(1", "1 2", "f(", "$"])
def test_nonsense_is_refused(text):
    with pytest.raises(SyntaxError):
        evaluate(text)


def test_differences_of_several():
    assert evaluate("10 - 4 - 3") == 3
    assert evaluate("budget - rent - food + gift", budget=100, rent=40, food=25, gift=5) == 40


def test_quotients_of_several():
    assert evaluate("24 / 4 / 2") == 3
    assert evaluate("24 / 4 * 2") == 12
