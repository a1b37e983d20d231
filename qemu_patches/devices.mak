# The devices of our QEMU, and nothing else (read by --with-devices-x86_64).
#
# Built without default devices, so `default y` in Kconfig is ignored: a device that is not named
# here does not exist.  Adding one later rebuilds two thirds of QEMU.

# Machine
CONFIG_Q35=y
CONFIG_PCIE_PORT=y

# What a guest needs
CONFIG_VIRTIO_PCI=y
CONFIG_VIRTIO_BLK=y
CONFIG_VIRTIO_NET=y
CONFIG_VIRTIO_RNG=y
CONFIG_VIRTIO_SERIAL=y
CONFIG_VIRTIO_9P=y

# Ours
CONFIG_VIRTIO_WORMHOLE=y
