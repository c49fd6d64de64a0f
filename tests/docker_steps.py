"""The steps of the Dockerfile without Docker: built in a temporary folder, and run as the image would run them.

Paths of the image (/opt/veilrec, /source, /work, /cache) become folders of the temporary one. What needs a system of
its own, such as making a user, is left out and said.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]
_OWN_PATHS = ("/opt/veilrec", "/source", "/work", "/cache")
_SYSTEM = ("useradd",)  # commands that would change this machine


@dataclass(frozen=True)
class Step:
    """An instruction and what follows it."""

    name: str
    text: str

    @property
    def words(self):
        """A list in JSON, or words as a shell reads them."""
        return [str(word) for word in json.loads(self.text)] if self.text.startswith("[") else shlex.split(self.text)


def read_steps(path=ROOT / "Dockerfile"):
    """Every instruction in order, lines that go on put together."""
    lines = (line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#"))
    joined = "\n".join(lines).replace("\\\n", " ")
    return [Step(*map(str.strip, line.split(maxsplit=1))) for line in joined.splitlines() if line.strip()]


def copied(steps):
    """What is copied from the repository, and where to."""
    return [(s.words[:-1], s.words[-1]) for s in steps if s.name == "COPY" and not s.text.startswith("--from")]


def is_sent(path, ignore=ROOT / ".dockerignore"):
    """Whether .dockerignore lets a path into the build; the last pattern that fits decides."""
    sent = True
    for line in ignore.read_text(encoding="utf-8").splitlines():
        pattern = line.strip()
        if pattern and not pattern.startswith("#"):
            kept, bare = pattern.startswith("!"), pattern.removeprefix("!").removeprefix("**/")
            if any(fnmatch(name, bare) for name in (path, path.split("/", maxsplit=1)[0], path.rsplit("/", 1)[-1])):
                sent = kept
    return sent


def _here(text, image):
    """The same command with the folders of the image inside the temporary one."""
    for own in _OWN_PATHS:
        text = text.replace(own, f"{image}{own}")
    return text


def main():
    """Run every step; raise where one fails."""
    steps = read_steps()
    with tempfile.TemporaryDirectory() as folder:
        image, environment, where = Path(folder), dict(os.environ), ROOT
        environment.pop("PYTHONPATH", None)
        for own in _OWN_PATHS:
            if own != "/opt/veilrec":
                (image / own[1:]).mkdir(parents=True)
        for step in steps:
            print(f"{step.name} {step.text}"[:150], flush=True)
            match step.name:
                case "WORKDIR":
                    where = Path(_here(step.text, image))
                case "COPY" if not step.text.startswith("--from"):
                    _copy(step.words[:-1], where / step.words[-1])
                case "ENV":
                    pairs = (word.partition("=") for word in step.words)
                    values = {name: _here(value, image) for name, _, value in pairs}
                    environment |= {n: value.replace("$PATH", environment["PATH"]) for n, value in values.items()}
                case "RUN" if step.words[0] in _SYSTEM:
                    print("  left out: it needs a system of its own")
                case "RUN":
                    python = f"{sys.executable} -m venv"
                    _run(_here(step.text, image).replace("python -m venv", python), where, environment)
        (entry,) = [step.words for step in steps if step.name == "ENTRYPOINT"]
        (health,) = [step.text.partition(" CMD ")[2] for step in steps if step.name == "HEALTHCHECK"]
        _run(health, where, environment)
        train = "train fedmf --data synthetic-ratings:users=150,items=150 --rounds 2 --out runs/first"
        for line in ("--help", train, "recommend runs/first --user u001"):
            _run(shlex.join([*entry, *line.split()]), where, environment)
    print("The image's steps work.")


def _copy(sources, target):
    for name in sources:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)


def _run(command, where, environment):
    print(f"  {command}"[:150], flush=True)
    shell, quiet = ["/bin/sh", "-c", command], subprocess.DEVNULL
    code = subprocess.run(shell, cwd=where, env=environment, stdout=quiet, check=False).returncode
    if code:
        sys.exit(f"{command} ended with {code}")


if __name__ == "__main__":
    main()
