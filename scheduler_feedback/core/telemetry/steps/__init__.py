"""Reports of ranks: their steps, open steps and collectives, by attempt; and what is computed from them alone."""
