"""Writes constraints.lock: the versions of constraints.txt, with the SHA-256 of every file of them in the index.

    .venv/bin/python .ci/lock.py     after constraints.txt has changed; make installs what it writes

A package that pyproject.toml wants on some platforms only has the same condition in the lock. torch and torchvision are
left out: which build of them is right (CPU, or one of CUDA's versions) differs between machines, each build has its own
index and its own hashes, and some machines bring a build of their own.
"""

import re
import sys
import tomllib
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import urlopen

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

ROOT = Path(__file__).parent.parent
INDEX = "https://pypi.org/simple"
LEFT_OUT = ("torch", "torchvision")
HEAD = "# Made from constraints.txt and pyproject.toml: .venv/bin/python .ci/lock.py makes it again."
LINK = re.compile(r'href="([^"]+)#sha256=([0-9a-f]{64})"')


def main() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (build,) = project["build-system"]["requires"]
    extras = [Requirement(text) for extra in project["project"]["optional-dependencies"].values() for text in extra]
    markers = {wanted.name: f" ; {wanted.marker}" for wanted in extras if wanted.marker}
    pins = [Requirement(pin) for pin in sorted([*lines, build], key=str.lower)]
    parts = [locked(pin, markers.get(pin.name, "")) for pin in pins if pin.name not in LEFT_OUT]
    (ROOT / "constraints.lock").write_text("\n".join([HEAD, *parts]) + "\n")


def locked(requirement: Requirement, marker: str) -> str:
    """One package as pip reads it, with its marker and a hash for each of its files."""
    (pin,) = requirement.specifier
    with urlopen(f"{INDEX}/{canonicalize_name(requirement.name)}/", timeout=60) as answer:
        links = LINK.findall(answer.read().decode())
    files = ((unquote(urlsplit(unescape(link)).path).rpartition("/")[2], digest) for link, digest in links)
    hashes = sorted({digest for name, digest in files if version_of(name) == Version(pin.version)})
    if not hashes:
        sys.exit(f"{INDEX} has no file of {requirement}")
    first = f"{requirement.name}=={pin.version}{marker}"
    return " \\\n".join([first, *(f"    --hash=sha256:{digest}" for digest in hashes)])


def version_of(name: str) -> Version | None:
    try:
        return parse_wheel_filename(name)[1] if name.endswith(".whl") else parse_sdist_filename(name)[1]
    except ValueError:
        return None


if __name__ == "__main__":
    main()
