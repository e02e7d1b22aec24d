"""The rules of the house that a machine can check: who imports whom, sizes, start-up, links, dependencies."""

import ast
import re
import resource
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from anemone.architectures.registry import supported

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
NEVER_IN_PRODUCT = {"torch", "transformers", "coremltools", "scipy", "sklearn"}
LATE = NEVER_IN_PRODUCT | {"tokenizers", "gguf", "huggingface_hub", "jinja2", "yaml", "rich", "google"}
IMPORT_NAMES = {"pyyaml": "yaml", "protobuf": "google", "pillow": "PIL"}


@cache
def tree() -> list[Path]:
    """Every file of the project that is not ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [path for name in listed.stdout.splitlines() if (path := ROOT / name).is_file()]


def python_files() -> list[Path]:
    return [path for path in tree() if path.suffix == ".py"]


def imports(path: Path) -> Iterator[str]:
    """The top-level name of every absolute import, wherever it stands in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0]


def product_imports() -> set[str]:
    return {name for path in (ROOT / "src").rglob("*.py") for name in imports(path)}


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def declared() -> set[str]:
    """Import names of the declared dependencies, and of the extras that are not for tests."""
    extras = [spec for name, specs in project()["optional-dependencies"].items() if name != "test" for spec in specs]
    names = {re.split(r"[^\w-]", spec)[0].lower() for spec in project()["dependencies"] + extras}
    return {IMPORT_NAMES.get(name, name) for name in names}


def test_dependencies_run_one_way():
    done = subprocess.run([BIN / "lint-imports", "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_product_never_imports_what_only_tests_may():
    assert not product_imports() & NEVER_IN_PRODUCT


def test_every_third_party_import_is_declared():
    assert product_imports() - set(sys.stdlib_module_names) - {"anemone"} <= declared()


def test_every_declared_dependency_is_used():
    # coremltools is declared for its protobuf modules, which are loaded without importing the package
    assert declared() - {"coremltools"} <= product_imports()


@pytest.mark.parametrize(
    "code", ["import anemone", "import sys; sys.argv = ['anemone', '--help']; import anemone.cli.main as m; m.main()"]
)
def test_start_up_loads_nothing_heavy(code):
    after = "import atexit, sys; atexit.register(lambda: print('loaded', *sys.modules))\n"
    done = subprocess.run([sys.executable, "-c", after + code], capture_output=True, text=True, check=True)
    loaded = done.stdout[done.stdout.rindex("loaded") :].split()
    assert not {name.split(".")[0] for name in loaded} & LATE


def test_help_answers_at_once():
    def seconds() -> float:
        """CPU seconds: what an idle machine would take, and the same on a busy one."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([BIN / "anemone", "--help"], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(5)) < 0.3


def test_files_stay_short():
    def limit(path: Path) -> int:
        family = path.parent.name == "architectures" and path.stem in supported()
        return 120 if family else 400

    lengths = {path: len(path.read_text().splitlines()) for path in python_files()}
    assert not {path.relative_to(ROOT): n for path, n in lengths.items() if n > limit(path)}


def test_functions_stay_short():
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in python_files()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (node.end_lineno or 0) - node.lineno + 1 > 60
    ]
    assert not long


@pytest.mark.parametrize(
    "pattern",
    [
        pytest.param(r"(?<![\w.@/-])/(work|tmp|root|home|Users)/\w", id="a path of one machine"),
        pytest.param(r"(?i)\bissue #?\d", id="an issue number"),
        pytest.param(r"\b(TO[D]O|FIX[M]E|XX[X])\b", id="unfinished work"),
    ],
)
def test_tree_is_free_of(pattern):
    texts = {path: path.read_text(errors="replace") for path in tree() if path.suffix not in {".bin", ".png"}}
    assert not [f"{path.relative_to(ROOT)}: {m[0]}" for path, text in texts.items() if (m := re.search(pattern, text))]


def headings(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_in_the_docs_resolve():
    broken = []
    for page in (path for path in tree() if path.suffix == ".md"):
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            if link.startswith(("http://", "https://")):
                continue
            if not target.exists() or (anchor and anchor not in headings(target)):
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert not broken


def test_make_targets_in_the_docs_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    pages = [path.read_text() for path in tree() if path.suffix == ".md"]
    named = {name for text in pages for name in re.findall(r"(?:`|^|\$ )make ([a-z-]+)", text, re.MULTILINE)}
    assert named <= targets


def test_readme_and_makefile_name_the_pythons_of_pyproject():
    first, end = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", project()["requires-python"]).groups()
    last = int(end) - 1
    assert f"Python 3.{first}-3.{last}" in (ROOT / "README.md").read_text()
    assert f"(3, {first}) <= sys.version_info[:2] <= (3, {last})" in (ROOT / "Makefile").read_text()


@pytest.mark.slow
def test_bare_install_is_small(tmp_path):
    def megabytes() -> float:
        return sum(path.lstat().st_size for path in tmp_path.rglob("*")) / 1e6

    source = tmp_path.parent / "source"
    shutil.copytree(ROOT / "src", source / "src")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True)
    before = megabytes()
    installed = subprocess.run([tmp_path / "bin/pip", "install", "-q", source], capture_output=True, text=True)
    if installed.returncode:
        pytest.skip(f"pip cannot install here: {installed.stderr.strip().splitlines()[-1]}")
    assert megabytes() - before <= 300
