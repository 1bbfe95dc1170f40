"""Many recorded runs at once, such as the ranks of one job: a file each.

`files` finds them, `workers` has something done with each of them by other processes, on this machine or on a Dask
cluster, `figures` are what one run comes to, `together` looks for the rank that decides and tunes for all of them.
"""
