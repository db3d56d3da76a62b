"""A stub for a package that is not carried: vLLM's ipc backend imports it at its head."""
