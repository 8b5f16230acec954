"""A small exchange: orders to buy and to sell, matched by price and time."""
