"""The blocks of a program as programs of their own."""
