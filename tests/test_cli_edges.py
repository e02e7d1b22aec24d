"""The command line as a process: pipes that close, signals, a device that is full."""

import signal
import subprocess
import sys

import pytest

ANEMONE = (sys.executable, "-m", "anemone.cli.main")


@pytest.fixture(scope="module")
def source(workshop):
    return workshop.checkpoint("llama")


def start(*arguments):
    return subprocess.Popen(
        [*ANEMONE, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_being_stopped_is_one_line_and_leaves_nothing_half_written(source, tmp_path, number, code):
    running = start("convert", source, "-o", tmp_path / "out", "--context", "64", "--batch", "8", "--no-verify")
    for line in running.stderr:
        if line.startswith("llama_embeddings"):
            break
    running.send_signal(number)
    _, said = running.communicate(timeout=60)
    assert running.returncode == code
    assert said.endswith("\nanemone: stopped\n")
    assert "Traceback" not in said
    assert not list((tmp_path / "out").glob(".*"))


def test_a_reader_that_has_seen_enough_is_no_error(source):
    running = start("plan", source)
    running.stdout.close()
    assert "Traceback" not in running.stderr.read()
    running.wait(timeout=60)


def test_a_full_device_is_one_line(source):
    with open("/dev/full", "w") as full:
        done = subprocess.run([*ANEMONE, "plan", str(source)], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "anemone: No space left on device\n"


def test_help_sentences_are_whole():
    done = subprocess.run([*ANEMONE, "--help"], capture_output=True, text=True, env={"COLUMNS": "80", "PATH": ""})
    assert done.returncode == 0
    assert "..." not in done.stdout.partition("Commands:")[2]


def test_the_version_is_told():
    done = subprocess.run([*ANEMONE, "--version"], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.startswith("anemone ")
    assert done.stdout.count("\n") == 1


def test_a_negative_seed_is_refused():
    done = subprocess.run([*ANEMONE, "execute", "x.mlpackage", "--random", "-1"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
