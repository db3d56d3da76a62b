# For pyright where Ray is not installed: it took rollring.ray, which stands beside what imports it,
# for it.
from typing import Any

def __getattr__(name: str) -> Any: ...
