"""Why a recorded run needed the memory that it did, and what would have helped.

`holders` says which line of code has what, `waste` why memory is held that is not in use, `failure` why a request could
not be served, `report` puts them together, `difference` compares two of them.
"""
