"""Deterministic damage: each kind turns a number into one broken copy of a sound model."""

import json
import os
import re
import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from damage import try_everything
from damage_program import SIZES, program

from anemone.errors import AnemoneError

WORDS = (
    "tensor<fp32, [1099511627776]>",
    "state<",
    "(",
    ")",
    "{",
    "}",
    "[",
    "]",
    ";",
    "->",
    "=",
    '"',
    "?",
    "list<",
    "BLOBFILE",
)
RECORD = struct.Struct("<IIQQQ")


def prepare(folder: Path, kind: str) -> tuple[Callable[[int, Path], str], Callable[[Path], None]]:
    """The mutation and the reader of a kind such as ``program`` or ``program+inspect``."""
    from anemone.package.read import read_package

    damage, _, reader = kind.partition("+")
    read: Callable[[Path], Any] = read_package if reader == "inspect" else try_everything
    suffix = ".mlmodelc" if damage == "text" else ".mlpackage"
    bases = sorted(path for path in folder.iterdir() if path.suffix == suffix and not path.name.startswith("scratch"))
    for base in bases:
        with suppress(AnemoneError):
            read(base)  # whatever is imported late is there before files are watched
    change = {"text": text, "bytes": damage_bytes, "program": program, "files": files}[damage]

    def mutate(number: int, copy: Path) -> str:
        rng = Random(f"{damage} {number}")
        base = rng.choice(bases)
        shutil.copytree(base, copy)
        return f"{base.name}: {change(rng, copy)}"

    return mutate, read


def text(rng: Random, copy: Path) -> str:
    """One to three changes of the words of a program."""
    path = copy / "model.mil"
    words = re.findall(r'"[^"]*"|[\w.]+|\s+|.', path.read_text())
    done = []
    for _ in range(rng.randint(1, 3)):
        i, j = rng.randrange(len(words)), rng.randrange(len(words))
        kind = rng.choice(["drop", "double", "swap", "digit", "huge", "word", "cut", "range", "character"])
        done.append(f"{kind} {i} {words[i]!r}")
        if kind == "drop":
            words[i] = ""
        elif kind == "double":
            words[i] *= 2
        elif kind == "swap":
            words[i], words[j] = words[j], words[i]
        elif kind in ("digit", "huge"):
            numbers = [k for k, word in enumerate(words) if word.isdigit()]
            k = rng.choice(numbers or [i])
            words[k] = str(rng.choice(SIZES) if kind == "huge" else rng.randint(0, 9)) + words[k][1:]
        elif kind == "word":
            words[i] = rng.choice(WORDS)
        elif kind == "cut" and len(done) == 1 and rng.random() < 0.5:
            words = words[: i + 1]
        elif kind == "range":
            del words[i : i + rng.randint(1, 30)]
        elif words[i]:
            at = rng.randrange(len(words[i]))
            words[i] = words[i][:at] + chr(rng.choice([0, 34, 40, 64, 91, 955])) + words[i][at + 1 :]
        words = words or [" "]
    path.write_text("".join(words))
    return ", ".join(done)


def damage_bytes(rng: Random, copy: Path) -> str:
    """A file cut, overwritten or shifted somewhere."""
    path = rng.choice(sorted(p for p in copy.rglob("*") if p.is_file()))
    content = bytearray(path.read_bytes())
    at, length = rng.randrange(len(content)), rng.choice([1, 1, 1, 2, 8, 64, 1000])
    kind = rng.choice(["cut", "flip", "delete", "double", "junk", "zero", "ones", "record"])
    if kind == "cut":
        del content[at:]
    elif kind == "flip":
        content[at] ^= 1 << rng.randrange(8)
    elif kind == "delete":
        del content[at : at + length]
    elif kind == "double":
        content[at:at] = content[at : at + length]
    elif kind == "junk":
        content[at : at + length] = rng.randbytes(length)
    elif kind == "record" and path.name == "weight.bin":
        at = rng.choice([i for i in range(0, len(content) - 64, 64) if content[i : i + 4] == b"\xef\xbe\xad\xde"])
        fields = list(RECORD.unpack_from(content, at))
        field = rng.randrange(4)
        fields[field] = rng.choice(SIZES) % 2 ** (32 if field < 2 else 64)
        RECORD.pack_into(content, at, *fields)
    else:
        content[at : at + length] = (b"\0" if kind == "zero" else b"\xff") * length
    path.write_bytes(content)
    return f"{kind} {length} at {at} of {path.name}"


def files(rng: Random, copy: Path) -> str:
    """Files that are missing, of another kind or lead elsewhere; a manifest that says something else."""
    (copy.parent / "secret.bin").write_bytes(b"secret" * 100)
    path = rng.choice(sorted(copy.rglob("*")))
    kinds = ["remove", "folder", "link out", "link circle", "pipe", "empty", *["manifest"] * 3]
    kind = rng.choice(kinds)
    if kind == "manifest":
        return f"manifest: {manifest(rng, copy)}"
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "link out":
        path.symlink_to(rng.choice(["../../secret.bin", "/etc/passwd", "/", "/dev/zero", "../secret.bin"]))
    elif kind == "link circle":
        path.symlink_to(path.name)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "empty":
        path.write_bytes(b"")
    return f"{kind} {path.relative_to(copy)}"


def manifest(rng: Random, copy: Path) -> str:
    path = copy / "Manifest.json"
    content = json.loads(path.read_text())
    entries, root = content["itemInfoEntries"], content["rootModelIdentifier"]
    values: list[Any] = ["../../secret.bin", "/etc/passwd", "..", "", ".", "\0", "a" * 5000, None, 5, [], {}, True, "x"]
    value = rng.choice([*values, "com.apple.CoreML/../../../secret.bin", "com.apple.CoreML", "/dev/zero"])
    place = rng.choice(["path", "path", "root", "entry", "entries", "all", "depth"])
    if place == "path":
        entries[root]["path"] = value
    elif place == "root":
        content["rootModelIdentifier"] = value
    elif place == "entry":
        entries[root] = value
    elif place == "entries":
        content["itemInfoEntries"] = value
    elif place == "all":
        content = value
    path.write_text("[" * 200000 if place == "depth" else json.dumps(content))
    return f"{place} = {str(value)[:40]!r}"
