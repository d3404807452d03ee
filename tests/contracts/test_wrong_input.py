"""Wrong input to the public modules beside the estimators."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.night
def test_wrong_input_to_the_public_modules_is_refused_in_a_sentence():
    script = Path(__file__).parent / "wrong_input.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    *found, count = done.stdout.splitlines()
    assert done.returncode == 0 and not found, done.stdout + done.stderr
    assert int(count.split()[0]) > 1000
