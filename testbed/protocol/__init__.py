"""The wire contract: specs, the generator of C code, and the Python view."""
