"""Machines: cached artifacts, QEMU, the guest, the processes of the host server."""
