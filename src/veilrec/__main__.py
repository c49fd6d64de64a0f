"""`python -m veilrec`: the command line, for those whose path does not have it."""

from veilrec.cli.main import run

if __name__ == "__main__":
    run()
