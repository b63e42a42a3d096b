"""Hub names without a network: one request and one line, or the copy on this machine."""

import shutil

import pytest

from softbeam.cli import main
from softbeam.models import load_mlm
from softbeam.models.huggingface import hub
from support.tiny_bert import write_letter_mlm


class Silent:
    """A session whose requests all fail, and are counted."""

    def __init__(self):
        self.requests = 0

    def head(self, *_, **__):
        self.requests += 1
        raise ConnectionError("Name or service not known")


@pytest.fixture
def session(monkeypatch):
    silent = Silent()
    monkeypatch.setattr(hub, "get_session", lambda: silent)
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)
    return silent


def test_without_a_network_a_name_is_one_line_after_one_request(session, capsys):
    assert main(["score", "--mlm", "nobody/nothing", "--text", "x"]) == 2
    assert session.requests == 1
    assert capsys.readouterr().err == (
        "softbeam score: 'nobody/nothing' is no folder and was never downloaded to this machine, "
        f"and {hub.constants.ENDPOINT} cannot be reached; give a folder, or connect to the "
        "network\n"
    )


@pytest.mark.slow
def test_what_was_downloaded_before_is_loaded_without_a_network(session, tmp_path, monkeypatch):
    place = tmp_path / "models--nobody--letters"
    write_letter_mlm(tmp_path / "mlm")
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("0" * 40)
    shutil.copytree(tmp_path / "mlm", place / "snapshots" / ("0" * 40))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert hub.loading_options("nobody/letters") == {"local_files_only": True}
    assert load_mlm("nobody/letters").mask_id == load_mlm(str(tmp_path / "mlm")).mask_id


def test_a_folder_needs_no_hub(session, tmp_path):
    assert hub.loading_options(tmp_path) == {} and session.requests == 0


def test_offline_by_setting_makes_no_request(session, monkeypatch):
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    assert not hub.answers() and session.requests == 0
