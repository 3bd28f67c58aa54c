"""Devices that are not here: what is known of chips and links, their compilers, what programs take on them."""
