"""What a user can get wrong on the command line."""


class UserError(Exception):
    """Something on the command line that cannot be; its text says in one line what, why, and what to do."""
