"""A recorded run prepared for viewing: memory over time, and at any moment.

`lives` has the lifetime of every block and of all memory that was ever held, `walk` runs through them and keeps the
highest moment of each interval, `pieces` gives the state of all memory at one moment, `groups` assigns blocks to
owners, `search` finds blocks, and `timeline` combines them. Nothing here depends on how it is drawn.
"""
