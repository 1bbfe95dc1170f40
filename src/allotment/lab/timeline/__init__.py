"""A recorded run as something to look at: memory over time, and at any moment of it.

`lives` has every block from birth to death and all memory that was ever held, `walk` runs through them and keeps the
highest moment of each stretch of time, `pieces` tells what memory is doing at one moment, `groups` says who a block
belongs to, `search` finds blocks, and `timeline` puts them together. Nothing here knows how it is drawn.
"""
