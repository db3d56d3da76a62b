# For pyright where Ray is not installed: it took rollring.integrations.ray for it, which stands
# beside the modules that import it.
from typing import Any

def __getattr__(name: str) -> Any: ...
