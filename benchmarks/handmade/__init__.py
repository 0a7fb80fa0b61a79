"""Step traces written by hand, one for each odd shape of a job, judged with `gangwatch detect`."""
