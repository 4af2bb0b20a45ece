"""Where files of earlier versions lie, and what their models say."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fl_app.api import load_model

FILES = Path(__file__).parent


def predicted(run: Path, inputs: NDArray[np.float32]) -> list[str]:
    """The names of the classes that a run's model predicts."""
    model = load_model(run)
    with torch.no_grad():
        rows = model(torch.from_numpy(inputs)).argmax(dim=1)
    return [str(model.classes[row]) for row in rows.tolist()]
