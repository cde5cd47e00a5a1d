"""What notebooks and IPython show, and the notebook of the examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import zfabric as zf
from zfabric.api.explanations import Explanation

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs/examples/notebook.ipynb"


def test_the_notebook_runs_and_shows_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="NO NBCLIENT HERE: the notebook is not run (the extra 'test' has it)")
    pytest.importorskip("ipykernel", reason="NO IPYKERNEL HERE: the notebook is not run (the extra 'test' has it)")
    import nbformat

    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output["data"] for cell in notebook.cells for output in cell.get("outputs", ()) if "data" in output]
    ref, square, counted, total, actor, infeasible, awaited = shown[:4] + shown[-3:]
    assert counted["text/plain"].startswith("squares: 20 of 20 done")
    assert ref["text/html"].startswith(f"<details><summary><code>{ref['text/plain']}</code> <b>")
    assert [each["text/plain"] for each in (square, total, awaited)] == ["49", "2470", "7"]
    assert "<td" in actor["text/html"]
    assert "Counter" in actor["text/html"]
    assert "<b>infeasible</b>" in infeasible["text/html"]
    assert infeasible["text/plain"].splitlines()[0].endswith(": infeasible")


class Hostile:
    pass


Hostile.__qualname__ = Hostile.__name__ = "<script>alert(1)</script>"


@zf.remote
def numbers() -> Any:
    yield 1


def test_names_and_texts_are_no_markup(shared_cluster: Any) -> None:
    explanation = Explanation("<i>1</i>", "<i>2</i>", "a & b", {"<i>3</i>": "<script>"})
    assert "<i>" not in explanation._repr_html_()
    assert "&lt;script&gt;</td>" in explanation._repr_html_()
    actor = zf.remote(Hostile).remote()
    ref = zf.remote(lambda: 1).remote()
    stream = numbers.remote()
    for each, text in ((actor, "&lt;script&gt;alert"), (ref, "&lt;lambda&gt;"), (stream, "numbers")):
        html = each._repr_html_()
        assert text in html
        assert "<script" not in html
        assert "<lambda" not in html
    stream.close()
    assert stream._repr_html_() is None, "so that its text is shown"
    zf.shutdown()
    assert (actor._repr_html_(), ref._repr_html_()) == (None, None)
