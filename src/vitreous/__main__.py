"""`python -m vitreous`, and `torchrun -m vitreous`."""

from vitreous.cli import main

if __name__ == "__main__":
    main()
