"""Train a Transformer: `python train.py --help`."""

from triform.commands.train import main

if __name__ == "__main__":
    raise SystemExit(main())
