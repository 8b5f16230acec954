"""Popular plugins of pytest and test frameworks: each has a suite that uses it, which scoring must count correctly."""
