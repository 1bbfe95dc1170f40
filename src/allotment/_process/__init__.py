"""What the whole process holds on a device: the ledger of the library that `allotment.preload` loads first."""
