import pytest

from book.exchange import Exchange
from book.orders import Order


def test_orders_of_one_price_are_served_in_time():
    exchange = Exchange()
    first = exchange.place("sell", 1.00, 5)
    second = exchange.place("sell", 1.00, 5)
    third = exchange.place("buy", 1.00, 7)
    assert exchange.trades == [(third, first, 5, "1.00"), (third, second, 2, "1.00")]


def test_the_better_price_is_served_first():
    exchange = Exchange()
    exchange.place("sell", 1.10, 5)
    cheap = exchange.place("sell", 1.05, 5)
    exchange.place("buy", 1.10, 5)
    assert exchange.trades[0][1] == cheap


def test_what_does_not_cross_stays():
    exchange = Exchange()
    exchange.place("sell", 1.10, 5)
    exchange.place("buy", 1.05, 3)
    assert exchange.trades == []
    assert exchange.sides["buy"].depth() == [("1.05", 3)]
    assert exchange.sides["sell"].depth() == [("1.10", 5)]


def test_orders_are_checked():
    with pytest.raises(ValueError):
        Order(1, "lend", 1.00, 5)
    with pytest.raises(ValueError):
        Order(1, "buy", 1.00, 0)


def test_an_improved_order_joins_the_others_of_its_price():
    exchange = Exchange()
    exchange.place("buy", 0.15, 5)
    number = exchange.place("buy", 0.10, 5)
    exchange.improve(number, 1)
    assert exchange.sides["buy"].depth() == [("0.15", 10)]


def test_an_improved_order_meets_the_other_side():
    exchange = Exchange()
    number = exchange.place("sell", 0.40, 5)
    buyer = exchange.place("buy", 0.35, 5)
    exchange.improve(number, 1)
    assert exchange.trades == [(number, buyer, 5, "0.35")]
