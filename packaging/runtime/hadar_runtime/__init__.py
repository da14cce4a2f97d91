"""Makes `hadar_slurm.runtime` importable where a whole hadar_slurm is not installed.

Python does so by itself in an environment (`zz_hadar_runtime.pth`). Only a directory that is
searched in another way, such as one of `pip install --target`, needs `import hadar_runtime` first.
"""

import sys
from pathlib import Path

PATH = str(Path(__file__).parent / "path")
if PATH not in sys.path:
    sys.path.append(PATH)  # last: a whole hadar_slurm comes first
