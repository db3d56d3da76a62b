"""Stand-ins for packages that are not carried are found last, in every process."""

import os
import sys

if "VGPU_STUBS" in os.environ:
    sys.path.append(os.environ["VGPU_STUBS"])
