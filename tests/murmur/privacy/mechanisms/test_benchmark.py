import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]


def test_the_benchmark_prints_and_writes_its_page(tmp_path):
    page = tmp_path / "mechanisms.md"
    command = [sys.executable, "-m", "benchmarks.mechanisms", "--entries", "1000"]
    command += ["--draws", "1000", "--output", str(page)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert page.read_text() == ran.stdout
    rows = [line for line in ran.stdout.splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + 6 and all(row.count("|") == 7 for row in rows)
    assert ran.stdout.count("all finite") == 2
