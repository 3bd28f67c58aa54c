"""How blocks are split, and where state is kept."""
