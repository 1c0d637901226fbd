"""What lies in a folder beside the files it is known to hold."""

import os
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath


def unlisted_entries(folder: Path, files: Collection[str]) -> Iterator[str]:
    """Every entry but these files and the folders they lie in, by relative name; hidden ones are entries like others.

    A folder that has none of the files is named as a whole. So is a link to a folder, even in the place of one that
    should have some: what is behind it lies elsewhere.
    """
    known, folders = set(files), {parent.as_posix() for name in files for parent in PurePosixPath(name).parents}
    for root, directories, names in os.walk(folder):
        place = Path(root)
        for name in sorted(directories):
            entry = (place / name).relative_to(folder).as_posix()
            if entry not in folders or (place / name).is_symlink():
                directories.remove(name)
                yield entry
        entries = ((place / name).relative_to(folder).as_posix() for name in sorted(names))
        yield from (entry for entry in entries if entry not in known)
