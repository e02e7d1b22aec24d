"""anemone inspect"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anemone.cli import options
from anemone.cli.output import print_facts, print_json, print_table, size

if TYPE_CHECKING:
    from anemone.package.read import Feature, PackageInfo

Target = Annotated[Path, typer.Argument(metavar="PATH", help="A .mlpackage, a .mlmodelc or a bundle folder.")]


def command(path: Target, as_json: options.Json = False) -> None:
    """Show functions, inputs, outputs, states, operations and weights of a package or of each package of a bundle."""
    from anemone.package.bundle import META, read_bundle

    if (path / META).is_file():
        bundle = read_bundle(path)
        packages = [read(package) for package in bundle.packages]
        meta = bundle.meta["model_info"]
        if as_json:
            print_json({"bundle": str(path), "meta": meta, "packages": [as_dict(package) for package in packages]})
            return
        name, architecture = meta.get("name", path.name), meta.get("architecture", "unknown architecture")
        typer.echo(f"{name}: {architecture}, context {bundle.context}, batch {bundle.batch}")
        for package in packages:
            print_package(package)
        return
    package = read(path)
    if as_json:
        print_json(as_dict(package))
    else:
        print_package(package)


def read(path: Path) -> "PackageInfo":
    """A package, or a compiled model, whose program is text that the executor reads."""
    from anemone.execute.formats import TEXT, read_model
    from anemone.package.read import describe, read_package

    if path.suffix != ".mlmodelc":
        return read_package(path)
    model, folder = read_model(path)
    return describe(path, model, folder, folder / TEXT)


def as_dict(package: "PackageInfo") -> dict[str, Any]:
    return {
        "path": str(package.path),
        "specification_version": package.specification_version,
        "functions": [
            {
                "name": function.name,
                "inputs": [vars(feature) for feature in function.inputs],
                "outputs": [vars(feature) for feature in function.outputs],
                "states": [vars(feature) for feature in function.states],
                "operations": dict(function.operations),
            }
            for function in package.functions
        ],
        "weights": {name: {"tensors": count, "bytes": nbytes} for name, (count, nbytes) in package.formats().items()},
        "weight_bytes": package.weight_bytes,
        "shared_bytes": package.shared_bytes,
        "metadata": dict(package.metadata),
        "user_defined": dict(package.user_defined),
        "problems": list(package.problems),
    }


def print_package(package: "PackageInfo") -> None:
    typer.echo(
        f"{package.path.name}: {size(package.weight_bytes)} of weights, specification {package.specification_version}"
    )
    for function in package.functions:
        typer.echo(f"  function {function.name}")
        rows = [
            (kind, feature.name, feature.dtype, _shapes(feature))
            for kind, features in (("in", function.inputs), ("out", function.outputs), ("state", function.states))
            for feature in features
        ]
        print_table(rows, indent="    ")
        counts = {kind: count for kind, count in function.operations.items() if kind != "const"}
        listed = ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items(), key=lambda item: -item[1]))
        typer.echo(f"    {sum(counts.values())} operations: {listed}")
    print_facts(
        [
            *((name, f"{count} tensors, {size(nbytes)}") for name, (count, nbytes) in package.formats().items()),
            ("shared", f"{size(package.shared_bytes)} serve more than one function"),
        ]
    )
    for problem in package.problems:
        typer.echo(f"  problem: {problem}")


def _shapes(feature: "Feature") -> str:
    shapes = feature.shapes or ((feature.shape,) if feature.shape else ())
    return " or ".join(str(list(shape)) for shape in shapes) or "follows the input"
