"""``python -m alps_ppl`` is ``alps-ppl``."""

from alps_ppl.app.cli import main

if __name__ == "__main__":
    main()
