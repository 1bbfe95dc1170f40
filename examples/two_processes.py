"""Two processes work on one block: the parent writes, the child adds; nothing is copied."""

import multiprocessing

import numpy as np

import allotment


def add_one(handle: allotment.SharedHandle) -> None:
    """The child: open the block, work on it, close it."""
    with allotment.open_shared(handle) as buffer:
        numbers = np.frombuffer(buffer, np.float32)
        numbers += 1
        del numbers  # a buffer that arrays use cannot be closed


def main() -> None:
    allocator = allotment.Allocator("host", settings="shareable:True")
    buffer = allocator.empty(4_000_000)
    numbers = np.frombuffer(buffer, np.float32)
    numbers[:] = 1.0
    handle = allocator.share(buffer)  # the block is held for a minute, or as long as the child has it open
    child = multiprocessing.get_context("spawn").Process(target=add_one, args=(handle,))
    child.start()
    child.join()
    print(f"{numbers.sum():.0f} = 2 x {numbers.size}, written by process {child.pid}")


if __name__ == "__main__":
    main()
