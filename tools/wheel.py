"""`make wheel`: the installed package without extras, as somebody has it who changes one import."""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from stable_baselines3.common.env_util import make_vec_env

import leeward
from leeward import DistributionalPPO

__all__ = ["main"]

_EXTRAS = ("pandas", "plotly", "ccxt", "pyarrow", "ray", "pytest")


def main() -> int:
    """Learn, save, load, predict the same; and a command of the trading chain names the extra that it needs."""
    here = Path(leeward.__file__)
    assert "site-packages" in here.parts, f"{here} is not an installed package"
    env = make_vec_env("CartPole-v1", 2, seed=0)
    model = DistributionalPPO("MlpLstmPolicy", env, n_steps=32, batch_size=32, n_epochs=1, seed=0, device="cpu")
    model.learn(128)
    seen = np.zeros((1, 4), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        again = DistributionalPPO.load(Path(folder) / "model", device="cpu")
        assert (model.predict_distribution(seen).quantiles == again.predict_distribution(seen).quantiles).all()
        command = [str(Path(sys.executable).with_name("leeward")), "train", "--data", "sample:nasdaq"]
        found = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert found.returncode == 1 and "pip install 'leeward[trading]'" in found.stderr, found
    present = [name for name in _EXTRAS if name in sys.modules]
    assert not present, f"imported without need: {present}"
    print(f"leeward {leeward.__version__} from {here.parent}: import, learn, save, load; {found.stderr.strip()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
