"""Why a recorded run needed the memory that it did, and what would have helped.

`study` works out once what all others use: `blocks` from birth to death, `steps` of the run, `origins` (the line of
each block, also in backward passes, by the marks of `stack_marks`), `kinds` of memory and `labels` of the program's
own. `growth` says what grows with every step, `causes` and `models` why the program needs so much, `waste` why memory
is held that is not in use, `failure` why a request could not be served, `holders` which line of code has what, `advice`
what to change. `report` puts them together, `difference` compares two of them, `flame` has memory by stack.
"""
