"""The command line: one file a command; each parses, calls one function of the library and prints."""
