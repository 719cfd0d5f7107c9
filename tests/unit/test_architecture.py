"""The architecture is what the documents say: layers, sizes, seams, names."""

import ast
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from gateway import extensions

ROOT = Path(__file__).parent.parent.parent
MODULES = sorted(
    path for package in ("gateway", "decoders") for path in (ROOT / package).rglob("*.py")
)


def test_imports_go_downwards_only():
    # In a process of its own: it sets up logging for the whole process it runs in.
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_says_what_it_is_and_stays_small(path):
    text = path.read_text()

    assert text.count("\n") <= 400
    assert ast.get_docstring(ast.parse(text)), "no docstring"


def test_only_the_configuration_reads_the_environment():
    readers = {
        str(path.relative_to(ROOT))
        for path in MODULES
        if re.search(r"os\.environ|getenv", path.read_text())
    }

    assert readers - {"gateway/config.py"} == set()


def test_every_seam_is_a_protocol_of_at_most_three_methods():
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and any(
                isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases
            ):
                methods = [
                    item.name
                    for item in node.body
                    if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
                    and not item.decorator_list
                ]
                assert len(methods) <= 3, f"{path}: {node.name} has {methods}"


def test_every_registered_extension_can_be_imported():
    for kind in extensions.KINDS:
        names = [point.name for point in entry_points(group=f"gateway.{kind}")]
        assert names, kind
        for name in names:
            assert callable(extensions.load(kind, name))


def test_the_architecture_page_names_every_module():
    page = (ROOT / "docs" / "architecture.md").read_text()
    for package in ("gateway", "decoders"):
        for path in (ROOT / package).iterdir():
            name = path.stem
            if not name.startswith("_") and (path.is_dir() or path.suffix == ".py"):
                assert f"`{name}`" in page, f"{package}.{name}"


def test_links_between_the_documents_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} → {target}"
