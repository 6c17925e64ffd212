"""Imported last by the server that jobs are forked from: what it has imported by then is garbage in no job.

Else the collector of each job looks through half a million objects of torch and others once, for a third of a second,
and has the system copy the memory that they are in.
"""

import gc

gc.collect()
gc.freeze()
