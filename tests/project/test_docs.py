"""What the documentation quotes is in the code, and what it shows runs."""

import ast
import re

import pytest
import yaml
from package_source import ROOT
from page import Page, missing

DOCS = ROOT / "docs"


def literals() -> list[str]:
    """All strings in the package's code, with … for what is filled in."""

    def text(node):
        if isinstance(node, ast.JoinedStr):
            return "".join(text(part) for part in node.values)
        return node.value if isinstance(node, ast.Constant) else "…"

    return [
        re.sub(r"%[sd]", "…", text(node))
        for path in [*(ROOT / "tf_scalecom").rglob("*.py"), ROOT / "setup.py"]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.JoinedStr)
        or (isinstance(node, ast.Constant) and isinstance(node.value, str))
    ]


MESSAGES = re.findall(r"^> (.+)$", (DOCS / "troubleshooting.md").read_text(), re.M)


def test_messages_in_troubleshooting_are_those_of_the_code():
    code = literals()
    drifted = [m for m in MESSAGES if not any(m.removesuffix(" …").strip() in c for c in code)]
    assert len(MESSAGES) > 20
    assert drifted == []


def test_every_page_is_in_the_navigation():
    pages = {path.name for path in DOCS.glob("*.md")}
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    listed = [page for group in navigation for entries in group.values() for page in entries]
    assert sorted(listed) == sorted(pages)


def test_public_names_are_in_the_reference():
    import tf_scalecom

    reference = (DOCS / "api.md").read_text()
    names = set(tf_scalecom.__all__) - {"__version__", "callbacks", "ops"}
    names |= set(tf_scalecom.callbacks.__all__)
    assert [name for name in names if name not in reference] == []


def run_quickstart(strategy, script):
    names = {"__name__": "__main__"}
    exec(script, names)
    report = names["model"].optimizer.compression_report
    return report().num_replicas, str(report(num_replicas=4))


@pytest.mark.quick
def test_the_quickstart_runs_and_its_report_is_as_shown(cluster):
    page = Page("index.md")
    shown = re.findall(r"^\[worker 0\] (.*)$", page.text, re.M)
    assert len(shown) == 9
    for replicas, report in cluster(2).run(run_quickstart, page.files["train.py"], timeout=90):
        assert replicas == 2
        assert missing(shown, report) == []
