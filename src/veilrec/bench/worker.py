"""The process of one task: `python -m veilrec.bench.worker TASK OPTIONS`; options and result are JSON."""

from __future__ import annotations

import json
import sys

from veilrec.bench.options import Options
from veilrec.bench.tasks import TASKS
from veilrec.errors import VeilrecError


def main(name: str, options: str) -> int:
    """Run the task; one JSON object on standard output, or one line on standard error and code 2."""
    try:
        result = TASKS[name].run(name, Options(**json.loads(options)))
    except VeilrecError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(json.dumps(result.to_json()) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
