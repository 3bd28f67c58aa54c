"""What Alpa is given: methods, the option, and devices of its meshes. The only folder that imports alpa."""
