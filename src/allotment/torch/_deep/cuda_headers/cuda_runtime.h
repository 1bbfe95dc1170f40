/* CUDA's functions for C, which is all that the stand-in needs: the header of this name needs a part of the toolkit
 * that PyTorch's own packages do not bring. */
#pragma once
#include <cuda_runtime_api.h>
