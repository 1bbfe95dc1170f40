"""Many recorded runs at once, such as the ranks of one job, with one file each.

`files` finds them, `workers` processes each of them in other processes, on this machine or on a Dask cluster, `figures`
are the figures of one run, `together` finds the rank that decides and tunes for all of them.
"""
