"""The cell magic in real kernels, in an environment where the wheel is installed. Run by scripts/test-packages."""

import html
import os
import re

import pytest

import allocsample

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")


def executed(*cells, fails=False):
    """The cells after execution in a new kernel."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", allow_errors=fails)
    client.execute()
    return notebook.cells


def outputs(cell, kind="text/plain"):
    return [output.data[kind] for output in cell.outputs if kind in output.get("data", {})]


BLOCKS = "%%allocsample --no-page --interval 16K\n\nkept = [bytes(50_000) for _ in range(1_000)]\nlen(kept)"


def test_a_cell_shows_its_lines_and_still_its_result():
    _, cell = executed("%load_ext allocsample", BLOCKS)
    shown, result = outputs(cell)
    assert result == "1000"
    # The line has the number that the notebook shows, and holds 47.7 MiB; the standard error is below 1 %.
    held = re.search(r"^3 +kept = .*?  ([0-9.]+) MiB ± .*  ([0-9.]+) MiB", shown, re.MULTILINE)
    assert held, shown
    for figure in held.groups():
        assert abs(float(figure) - 50_000 * 1_000 / 2**20) < 2
    assert "this cell" in shown and "lost" in shown


def test_what_a_cell_frees_is_not_in_use_at_its_end():
    _, cell = executed("%load_ext allocsample", BLOCKS + "\ndel kept")
    shown = outputs(cell)[0]
    assert re.search(r"allocated (4[5-9]|50)\.\d MiB", shown) and re.search(r"in use at the end \d+(\.\d)? (B|KiB)", shown), shown


def test_functions_of_other_cells_keep_their_names():
    _, _, cell = executed(
        "%load_ext allocsample",
        "def build():\n    return [bytes(5_000) for _ in range(4_000)]",
        "%%allocsample --no-page\nbuilt = build()",
    )
    assert re.search(r"build.* another cell ", outputs(cell)[0])


def test_cells_are_profiled_one_after_the_other_and_each_alone():
    _, first, second = executed("%load_ext allocsample", BLOCKS, "%%allocsample --no-page\nfew = bytes(5 << 20)")
    allocated = [float(re.match(r"allocated ([0-9.]+) MiB", outputs(cell)[0]).group(1)) for cell in (first, second)]
    assert allocated[0] > 40 and 4 < allocated[1] < 12


def test_an_error_of_the_cell_is_the_notebooks_and_the_profile_ends():
    _, failing, next_one = executed(
        "%load_ext allocsample", "%%allocsample --no-page\nkept = bytes(8 << 20)\n1 / 0", BLOCKS, fails=True
    )
    errors = [output for output in failing.outputs if output.output_type == "error"]
    assert [error.ename for error in errors] == ["ZeroDivisionError"]
    assert "----> 3 1 / 0" in re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(errors[0].traceback))
    assert "kept = bytes(8 << 20)" in outputs(failing)[0]
    assert outputs(next_one)[1] == "1000"


def test_the_page_is_in_a_frame_and_the_profile_is_kept(tmp_path):
    path = tmp_path / "cell.allocsample"
    _, cell = executed("%load_ext allocsample", f"%%allocsample --output {path} --height 300\nkept = bytes(8 << 20)")
    shown = outputs(cell, "text/html")[0]
    page = html.unescape(re.search(r"<iframe [^>]*srcdoc='([^']*)'></iframe>", shown).group(1))
    assert page.startswith("<!") and page.rstrip().endswith("</html>")
    assert 'sandbox="allow-scripts"' in shown and "height: 300px" in shown
    assert allocsample.open(path).query("SELECT count(*) AS samples FROM samples")[0]["samples"] > 0
    assert os.listdir(tmp_path) == ["cell.allocsample"]


def test_what_the_command_refuses_is_said():
    _, cell = executed("%load_ext allocsample", "%%allocsample --interval never\n1", fails=True)
    assert "ProfileError" in cell.outputs[-1].ename and "never" in cell.outputs[-1].evalue
