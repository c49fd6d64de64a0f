"""What disks and people do to files: every file of a folder in turn is emptied, torn, zeroed, removed or put back."""

import shutil

from veilrec.core.errors import VeilrecError


def files_of(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def harmed(folder, older, work):
    """For every file and every harm: its name, the harm, and a copy of the folder that has it.

    `older` is a copy of the folder from before; a file that it has otherwise is put back in its place.
    """
    for name in files_of(folder):
        whole = (folder / name).read_bytes()
        before = older / name
        harms = {"emptied": b"", "torn": whole[: len(whole) // 2], "zeroed": bytes(len(whole)), "removed": None}
        if before.is_file() and before.read_bytes() != whole:
            harms["put back"] = before.read_bytes()
        for harm, content in harms.items():
            if content == whole:
                continue
            shutil.rmtree(work, ignore_errors=True)
            shutil.copytree(folder, work)
            path = work / name
            path.unlink() if content is None else path.write_bytes(content)
            yield name, harm, work


def refused(action):
    """The one line that an action is refused with, or None and what it gave."""
    try:
        return None, action()
    except VeilrecError as error:
        assert str(error) and "\n" not in str(error)
        return str(error), None
