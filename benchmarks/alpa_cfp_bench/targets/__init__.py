"""Methods compared on devices that are not here: planned, compiled by the target's compiler, and modelled."""
