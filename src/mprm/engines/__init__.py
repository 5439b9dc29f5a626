"""Where the work runs: on this machine's cores, or on a Ray cluster. Both only map a function."""
