"""Candidates: the program of each block under each strategy, with its work and memory."""
