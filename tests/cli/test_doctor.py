"""``pocketllm doctor`` shows every answer, loads nothing, and never hides a broken backend."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.programs import pocketllm
from tests.plugins.fake_distributions import backend_source, install

RAISES = "\n@hookimpl\ndef pocketllm_probe(checkpoint, args):\n    raise RuntimeError('the card fell out')\n"
REFUSES = "\n@hookimpl\ndef pocketllm_probe(checkpoint, args):\n    return Refusal(reason='It only does sums.')\n"


def three_backends(site: Path) -> None:
    install(site, "quick", backend_source("quick", rank=99))
    install(site, "raiser", backend_source("raiser", more=RAISES))
    install(site, "refuser", backend_source("refuser", more=REFUSES))


def test_every_answer_is_shown(tmp_path: Path) -> None:
    three_backends(tmp_path)
    done = pocketllm("doctor", "--json", site=tmp_path, POCKETLLM_PLUGINS="quick,raiser,refuser,smollm2")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["selected"] == "quick"
    assert report["model"]["format"] == "gguf"
    assert report["model"]["model_type"] == "llama"
    answers = {entry["backend"]: entry for entry in report["considered"]}
    assert (answers["quick"]["verdict"], answers["quick"]["rank"], answers["quick"]["device"]) == ("offer", 99, "cpu")
    assert (answers["refuser"]["verdict"], answers["refuser"]["reason"]) == ("refusal", "It only does sums.")
    assert answers["raiser"]["verdict"] == "broken"
    assert "RuntimeError: the card fell out" in answers["raiser"]["reason"]
    assert "python" in report["environment"]
    assert "pocketllm-core" in report["environment"]
    # The broken one might have been the better choice, so taking another is said aloud.
    assert "backend='auto' takes 'quick' and passed over 'raiser'" in done.stderr


def test_a_person_reads_the_report_as_tables(tmp_path: Path) -> None:
    three_backends(tmp_path)
    done = pocketllm("doctor", site=tmp_path, POCKETLLM_PLUGINS="quick,raiser,refuser,smollm2")
    assert "* quick" in done.stdout
    assert "quick serves it." in done.stdout
    assert "POCKETLLM_PLUGINS  quick,raiser,refuser,smollm2" in done.stdout


def test_a_model_that_nobody_serves_is_an_error(tmp_path: Path) -> None:
    three_backends(tmp_path)
    done = pocketllm("doctor", site=tmp_path, POCKETLLM_PLUGINS="refuser,smollm2")
    assert done.returncode == 1
    assert "Nothing serves it: No installed backend takes" in done.stdout


def test_a_model_that_is_not_there() -> None:
    done = pocketllm("doctor", "--model", "nowhere.gguf", "--json")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["error"].startswith("There is no file or folder 'nowhere.gguf'.")
    assert report["environment"]


def test_a_checkpoint_that_is_cut_off(tmp_path: Path, smollm2_path: Path) -> None:
    with smollm2_path.open("rb") as file:
        (tmp_path / "cut.gguf").write_bytes(file.read(1000))
    done = pocketllm("doctor", "--model", str(tmp_path / "cut.gguf"))
    assert done.returncode == 1
    assert "Nothing serves it:" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_no_secret_is_shown() -> None:
    done = pocketllm("doctor", POCKETLLM_API_KEY="hush")
    assert "hush" not in done.stdout
    assert "POCKETLLM_API_KEY" in done.stdout
