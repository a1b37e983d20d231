"""Which functions of an API a program can ask for, and which of them are forwarded."""
