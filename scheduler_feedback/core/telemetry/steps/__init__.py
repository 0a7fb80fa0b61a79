"""Reports of ranks: their steps, open steps and collectives, by attempt; and values computed only from them."""
