"""Power caps: which power limit each running gang should have. A study uses them; no backend sets a limit."""
