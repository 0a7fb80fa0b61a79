"""How events change the state: submissions, user requests, observations of the backend, verdicts, timeouts."""
