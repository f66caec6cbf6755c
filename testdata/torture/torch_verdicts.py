"""What `torch.load(weights_only=True)` does with the pickles of this folder.

    python torch_verdicts.py     writes torch.json, then run make.sh for the table
"""

import json
import warnings
from pathlib import Path

import torch

HERE = Path(__file__).parent


def verdict(path):
    try:
        torch.load(path, weights_only=True)
    except Exception:  # whatever it raises, it refuses
        return "refused"
    return "read"


warnings.simplefilter("ignore")
verdicts = {path.name: verdict(path) for path in sorted((HERE / "pickles").iterdir())}
text = json.dumps({"version": torch.__version__, "verdicts": verdicts}, indent=1)
(HERE / "torch.json").write_text(text + "\n")
