"""Parts of arrays from the hosts of one mesh to those of another, and sums of scalars over meshes."""
