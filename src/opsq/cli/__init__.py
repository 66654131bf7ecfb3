"""The command line: each verb parses, calls and prints, and decides nothing that the library could decide.

Nothing here is public API except the program `opsq` itself.
"""
