"""rollring in other systems. Each module imports its system only where that is used."""
