import torch


class _Cuda:
    device_type = "cuda"
    is_cuda = is_cuda_alike = staticmethod(lambda: True)
    is_rocm = is_xpu = is_cpu = staticmethod(lambda: False)
    graph_pool_handle = staticmethod(torch.cuda.graph_pool_handle)


current_platform = _Cuda()
