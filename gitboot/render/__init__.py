"""Plans -> files: `formats` makes them all, one module a format; `paths` is the table of where they lie."""
