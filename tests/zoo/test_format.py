"""The format on disk is frozen: files written by the first release must be read, and written again byte by byte.

The golden folder was made by ``python tests/zoo/test_format.py``. Make it again only with a new SCHEMA_VERSION.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import torch

import zoo
from zoo.format.manifest import Manifest
from zoo.publish import publish
from zoo.testing import TINY_MNIST, fabricate_shard, folder_contents
from zoo.verify import _verify

GOLDEN = Path(__file__).parent / "golden" / "published"
CARD = "---\n{{configs}}\n---\n"


def make(folder: Path) -> None:
    """A zoo of three runs in the form of this code."""
    fabricate_shard(folder / "runs", TINY_MNIST, count=3)
    (folder / "card.md").write_text(CARD)
    publish(folder / "runs", folder / "zoo", card=folder / "card.md")


def test_the_same_runs_give_the_bytes_of_the_first_release(tmp_path):
    make(tmp_path)
    made, golden = folder_contents(tmp_path / "zoo"), folder_contents(GOLDEN)
    assert without_versions(made.pop("manifest.json")) == without_versions(golden.pop("manifest.json"))
    assert made == golden


def without_versions(manifest: bytes) -> dict:
    """A manifest without what the first release did not write, and without the versions of the code that wrote it."""
    content = json.loads(manifest)
    content.pop("sha256", None)
    del content["code_version"], content["details"]["configs"]["mnist"]["code_versions"]
    return content


def test_a_zoo_of_the_first_release_is_read():
    assert Manifest.read(GOLDEN).sha256 is None
    assert _verify(GOLDEN) == []
    reader = zoo.open(GOLDEN, "mnist", split="all")
    assert len(reader) == 12
    assert len(set(reader.metadata["run_id"])) == 3
    flat = reader.weights(slice(None))
    assert flat.shape == (12, TINY_MNIST.num_parameters)
    assert flat.dtype == torch.float32
    # 0.3 times a standard normal
    assert np.isclose(float(flat.std()), 0.3, atol=0.01)


if __name__ == "__main__":
    scratch = Path("golden-scratch")
    make(scratch)
    shutil.rmtree(GOLDEN, ignore_errors=True)
    (scratch / "zoo").rename(GOLDEN)
    shutil.rmtree(scratch)
