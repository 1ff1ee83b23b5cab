"""cupool's command line: runs programs under the pool and reads what the pool leaves.

Knows published formats only: the options table (options.json), the report schema, the live page. Python 3.9 or
newer, standard library only.
"""

VERSION = "0.1.0"
