"""`python -m bdgd` is `bdgd`."""

from bdgd.apps.cli import main

if __name__ == "__main__":
    main()
