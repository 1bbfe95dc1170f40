"""Which settings a recorded run would have been best with.

`candidates` are the settings that are worth a try, `search` tries them by replay.
"""
