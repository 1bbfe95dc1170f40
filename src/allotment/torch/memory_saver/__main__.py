"""python -m allotment.torch.memory_saver: prints the folder for PYTHONPATH that makes `torch_memory_saver` ours."""

from allotment.torch.memory_saver._processes import FOLDER

print(FOLDER)
