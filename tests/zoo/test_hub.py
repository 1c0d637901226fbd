"""The hub without a login or without a network: one line with what to do, and exit code 2."""

from pathlib import Path

import pytest

from tests.refusal import refusal
from zoo import describe, publish
from zoo.reading.locate import hub_answering

CLOSED = "http://127.0.0.1:9"  # where no server listens


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", CLOSED)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))


def test_without_a_login_nothing_is_published(made: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    arguments = [str(made / "runs"), str(tmp_path / "out"), "--push-to-hub", "owner/zoo"]
    line = refusal(publish.main, arguments, capsys)
    assert line.startswith("error: pushing to owner/zoo needs a login: run `hf auth login`, or set HF_TOKEN")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("no_network")
def test_without_a_network_the_zoo_is_published_and_not_pushed(made: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_invented")
    out = tmp_path / "out"
    line = refusal(publish.main, [str(made / "runs"), str(out), "--push-to-hub", "owner/zoo"], capsys)
    assert line.startswith(f"error: {out} is published, but could not be pushed to owner/zoo: no connection to the hub")
    assert (out / "manifest.json").is_file()


@pytest.mark.usefixtures("no_network")
def test_a_zoo_on_the_hub_is_not_opened_without_a_network(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    line = refusal(describe.main, ["owner/zoo"], capsys)
    assert line.startswith(
        "error: owner/zoo could not be read from the hub, and is not in its cache here: no connection"
    )


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, r"it does not exist, or your token may not use it \(HTTP 401\): run `hf auth login`"),
        (403, "it does not exist, or your token may not use it"),
        (500, "the hub answered with HTTP 500, try again later"),
    ],
)
def test_answers_of_the_hub_have_messages_of_their_own(status: int, message: str) -> None:
    from huggingface_hub.errors import HfHubHTTPError

    class Refused(HfHubHTTPError):
        def __init__(self) -> None:
            self.response = type("Response", (), {"status_code": status})()  # pyright: ignore[reportAttributeAccessIssue]

    with pytest.raises((ValueError, OSError), match=f"not pushed: {message}"), hub_answering("not pushed"):
        raise Refused


def test_private_needs_a_repository(made: Path, tmp_path: Path, capsys) -> None:
    line = refusal(publish.main, [str(made / "runs"), str(tmp_path / "out"), "--private"], capsys)
    assert "name it with --push-to-hub OWNER/NAME" in line
