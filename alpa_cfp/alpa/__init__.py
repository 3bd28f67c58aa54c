"""The classes that a user gives to Alpa: methods, the option, and devices of its meshes. Alone imports alpa."""
