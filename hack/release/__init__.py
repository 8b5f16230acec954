"""What a release consists of, the same bytes whenever and wherever it is built: ``python -m hack.release``."""
