"""Entry point of ``python -m accelkit``."""

from accelkit.cli import main

if __name__ == "__main__":
    main()
