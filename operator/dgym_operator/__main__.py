"""``python -m dgym_operator``, installed as ``dgym-operator``."""

from dgym_operator.cli import main

if __name__ == "__main__":
    main()
