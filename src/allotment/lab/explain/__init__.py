"""Explains why a recorded run needed its memory, and what would have helped.

`study` computes once what all others use: `blocks` from birth to death, `steps` of the run, `origins` (the line of each
block, even in backward passes, from the marks of `stack_marks`), `kinds` of memory and `labels` of the program.
`growth` says what grows with every step. `causes` and `models` say why the program needs so much, `waste` why memory is
held that is not in use, `failure` why a request could not be served, `holders` which line of code holds what, `advice`
what to change. `report` combines them, `difference` compares two reports, and `flame` shows memory by stack.
"""
