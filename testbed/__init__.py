"""Wormhole Testbed: accelerator virtualisation by API forwarding, measured side by side."""
