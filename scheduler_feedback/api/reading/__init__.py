"""Reading: how whoever asks the API or opens a page is answered without the cycle's thread having a part in it.

`desk` takes a question, has it answered from the newest snapshot, and remembers the bytes while the state is the same.
`reads` makes answers on one thread, in turns between peers. `listing` is a snapshot as lists, `lists` gives pages of
these. The snapshots are the cycle's (scheduler_feedback/api/reading/state_snapshots.py). Start with `desk`.
"""
