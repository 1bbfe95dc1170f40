"""Makes Allotment the allocator of PyTorch in this process."""

from __future__ import annotations

import os
import sys
import warnings
from typing import TYPE_CHECKING, Any, Literal

import torch

from allotment import _logs as logs
from allotment import _settings as config
from allotment._allocators.caching.pool import PoolId, leave_ids_to_others
from allotment._allocators.current import current_caching
from allotment._core.tools.fork_safe_lock import fork_safe_lock
from allotment._rules import nearest_version
from allotment.errors import PoolError, RequestError, SettingsError, UnsupportedError
from allotment.torch._captures import end_failed_captures, keep_pools_of_captures
from allotment.torch._deep import deep
from allotment.torch._deep.building import CannotBuild
from allotment.torch._deep.self_check import RUNNING
from allotment.torch._deep.settings import DENSE, deep_settings, with_pytorchs_placement
from allotment.torch._pinned.pinned import Kind, PinnedMemory, expect_kind
from allotment.torch._process_state import process_state
from allotment.torch._sleep_guard import guard

if TYPE_CHECKING:
    from allotment._allocators.caching.allocator import Allocator
    from allotment._allocators.caching.tenants import Tenant

__all__ = ["install", "installed_mode", "is_installed", "raw_allocator"]

Mode = Literal["auto", "hooks", "deep"]

TENANT = "torch"

_lock = fork_safe_lock()
_settings: config.Settings | None = None
_ids_before: list[PoolId] = []
_plug_in: Any = None  # PyTorch's object; kept, because PyTorch calls into it until the process ends
_installed: Mode | None = None
_pinned: PinnedMemory | None = None


def install(
    mode: Mode = "auto",
    *,
    settings: str | config.Settings | None = None,
    patch: bool | None = None,
    dense: bool = False,
    pinned: Kind | None = None,
) -> None:
    """Serve all CUDA memory of PyTorch from `allotment.current("cuda:N")`, for the rest of the process.

    "deep" replaces PyTorch's own allocator with a class of ours, so that everything PyTorch calls on its allocator
    works. The class is compiled against the installed PyTorch the first time, which takes a C++ compiler and about
    twenty seconds. Deep mode can also be installed later, as long as PyTorch has no CUDA memory. "hooks" uses PyTorch's
    interface for plug-ins. It needs no compiler, and must be installed before PyTorch first uses a GPU. PyTorch refuses
    a plug-in many things; `patch` puts `allotment.torch.memory_stats` and similar functions under PyTorch's names,
    where PyTorch's own would raise. "auto" chooses deep mode for a PyTorch release that deep mode was proven with on a
    GPU, and for another one if a short check against PyTorch's own allocator passes; the check runs once. Otherwise it
    chooses hooks with the patch and prints the reason on standard error. If `patch` is given, "auto" chooses hooks.

    `settings` is a settings string or record. By default it is PyTorch's own variables (PYTORCH_CUDA_ALLOC_CONF, ...),
    read as PyTorch reads them. In deep mode the keys in ALLOTMENT_CONF override them, and those of a string given here
    override both. `dense` chooses dense placement, in both modes in addition to PyTorch's variables; a device that
    does not support it gets PyTorch's placement, and a line on standard error says so. A second call only adds the
    patch in hooks mode.

    `pinned` also serves PyTorch's pinned memory (`pin_memory()`, data loaders, non-blocking copies) from a
    `PinnedAllocator`, with PyTorch's decisions ("torch") or without rounding to powers of two ("tight"). That is
    compiled too, once; if it cannot be, PyTorch's own allocator stays for pinned memory, and a line on standard error
    says why. It works in both modes, can be added by a later call, and leaves tensors pinned before as they are.

    Raises SettingsError, also if the settings contradict `dense`; RequestError if it is too late, or another allocator
    is installed; UnsupportedError without a PyTorch for CUDA, or if `mode` is "deep" and deep mode is not possible.
    """
    if mode not in ("auto", "hooks", "deep"):
        raise RequestError(f"mode must be 'auto', 'hooks' or 'deep', not {mode!r}; settings are given as settings=")
    if mode == "deep" and patch is not None:
        raise RequestError("patch is for hooks; in deep mode PyTorch's own functions work as they are")
    expect_kind(pinned)
    if RUNNING in os.environ:
        return
    if dense:
        settings = deep_settings(settings, _compat(), dense=True)
    with _lock:
        memory = _pinned_memory(pinned, settings)
        if _installed is None:
            _install_first(mode, settings, patch)
        elif mode not in ("auto", _installed):
            raise RequestError(f"allotment.torch is installed already, in {_installed} mode, which cannot change")
        else:
            _refuse_other_settings(settings)
        if memory is not None:
            _install_pinned(memory)
    if patch and _installed == "hooks":
        _patch()


def _install_first(mode: Mode, settings: str | config.Settings | None, patch: bool | None) -> None:
    global _installed
    if mode == "deep" or (mode == "auto" and patch is None):
        try:
            _install_deep(settings, insist=mode == "deep")
            _installed = "deep"
            logs.logger.info("PyTorch's memory comes from our allocator, in deep mode")
            return
        except CannotBuild as error:
            if mode == "deep":
                raise
            reason = str(error)
    _install_hooks(settings)
    _installed = "hooks"
    logs.logger.info("PyTorch's memory comes from our allocator, in hooks mode")
    if mode == "auto" and patch is None:
        print(f"allotment: hooks mode for PyTorch, not deep: {reason}", file=sys.stderr, flush=True)
        _patch()


def _install_deep(settings: str | config.Settings | None, *, insist: bool) -> None:
    global _settings
    record = _as_record(settings, on_top=True)
    deep.load(insist=insist)
    before = _settings, process_state.settings
    _settings = process_state.settings = record
    ids = leave_ids_to_others()
    try:
        deep.put_in_place(_tenant_on)
    except BaseException:
        _settings, process_state.settings = before
        raise
    _ids_before.extend(ids)
    process_state.deep = True


def _install_hooks(settings: str | config.Settings | None) -> None:
    plug_in = _prepare(settings)
    try:
        torch._C._cuda_changeCurrentAllocator(plug_in)
    except RuntimeError as error:
        raise RequestError(
            f"PyTorch has used the GPU already, so its allocator can no longer be replaced ({error}); call"
            " allotment.torch.install() right after importing torch, or start the program with"
            " python -m allotment.torch"
        ) from error
    end_failed_captures()
    keep_pools_of_captures()


def _pinned_memory(kind: Kind | None, settings: str | config.Settings | None) -> PinnedMemory | None:
    """Return what is to be installed for pinned memory, if anything. Raises RequestError, SettingsError."""
    if kind is None:
        return None
    if _pinned is None:
        return PinnedMemory(kind, _as_record(settings, on_top=True))
    if _pinned.kind != kind:
        raise RequestError(f"pinned memory is installed already, as {_pinned.kind!r}, which cannot change")
    return None


def _install_pinned(memory: PinnedMemory) -> None:
    global _pinned
    try:
        memory.put_in_place()
    except CannotBuild as error:
        print(f"allotment: PyTorch's own allocator stays for pinned memory: {error}", file=sys.stderr, flush=True)
        return
    _pinned = memory
    logs.logger.info("PyTorch's pinned memory comes from our allocator, mode %s", memory.kind)


def _patch() -> None:
    from allotment.torch import memory

    memory.patch()


def is_installed() -> bool:
    """Whether PyTorch's memory comes from our allocator."""
    return _installed is not None


def installed_mode() -> str | None:
    """The mode that is installed, "deep" or "hooks"; None if none is."""
    return _installed


def raw_allocator(settings: str | config.Settings | None = None) -> Any:
    """An allocator for `torch.cuda.MemPool(raw_allocator())`, while PyTorch keeps its own for everything else.

    `settings` are as in `install`. The first call of either function sets them for both. Raises SettingsError;
    RequestError if other settings are in use, or in deep mode; UnsupportedError without a PyTorch for CUDA.
    """
    if _installed == "deep":
        raise RequestError("in deep mode Allotment serves every MemPool already; create it without an allocator")
    with _lock:
        return _prepare(settings)


def _prepare(settings: str | config.Settings | None) -> Any:
    """Return PyTorch's plug-in object over our functions, without using a GPU."""
    global _settings, _plug_in
    if _plug_in is not None:
        _refuse_other_settings(settings)
        return _plug_in
    is_for_rocm = deep.torch_here().hip is not None
    if is_for_rocm or not hasattr(torch._C, "_cuda_customAllocator"):
        built = "for ROCm" if is_for_rocm else "without CUDA"
        raise UnsupportedError(
            f"PyTorch {torch.__version__} was built {built}; install one that was built for CUDA", operation="install"
        )
    try:
        from allotment.torch import _hooks as hooks
    except ImportError as error:
        raise UnsupportedError(
            "allotment was built without a C++ compiler, which its PyTorch functions need; install one (g++) and"
            f" build it again ({error})",
            operation="install",
        ) from error
    _settings = process_state.settings = _as_record(settings)
    _ids_before.extend(leave_ids_to_others())
    hooks.bind_with(_tenant_on, _current_stream)
    addresses = hooks.addresses()
    plug_in = torch._C._cuda_customAllocator(addresses.pop("allocate"), addresses.pop("free"))
    for setter, address in addresses.items():
        getattr(plug_in, setter)(address)
    _plug_in = plug_in
    return plug_in


def _refuse_other_settings(settings: str | config.Settings | None) -> None:
    if settings is not None and _as_record(settings, on_top=_installed == "deep") != _settings:
        raise RequestError(
            "allotment.torch is in use already, with other settings, which cannot change; give them to the first call"
        )


def _as_record(settings: str | config.Settings | None, *, on_top: bool = False) -> config.Settings:
    """With `on_top`, the keys in a string override PyTorch's variables."""
    if on_top:
        record = deep_settings(settings, _compat())
    elif settings is None:
        record, error = config.pytorch_environment(compat=_compat())
        if error is not None:
            raise error
    else:
        record = config.settings_of(settings, compat=_compat())
    if record.backend != "native":
        raise UnsupportedError(
            f"backend:{record.backend} cannot be installed under PyTorch; leave PyTorch its own allocator for that",
            operation="install",
        )
    return record


def _compat() -> str:
    """Return the version of the installed PyTorch, whose rules apply unless the settings name another version."""
    return nearest_version(getattr(torch, "__version__", ""))


def _current_stream(index: int) -> int:
    """The handle of the calling thread's current stream of a device."""
    return int(torch._C._cuda_getCurrentRawStream(index))


def _tenant_on(index: int) -> Tenant:
    """Return PyTorch's tenant of the device's shared allocator."""
    chosen = process_state.settings
    try:
        allocator = current_caching(f"cuda:{index}", settings=chosen)
    except SettingsError as error:
        if chosen.placement != DENSE or error.key != "placement":
            raise
        print(f"allotment: {error}; PyTorch's placement is used for cuda:{index}", file=sys.stderr, flush=True)
        chosen = with_pytorchs_placement(chosen)
        allocator = current_caching(f"cuda:{index}", settings=chosen)
    _refuse_pools_of_before(allocator)
    if allocator.settings != chosen:
        warnings.warn(
            f"{allocator.device.name} has a shared allocator already, which keeps its settings; call"
            " allotment.torch.install() before others use it, or assign its `settings`",
            stacklevel=2,
        )
    if config.pytorch_caching_disabled():
        allocator.pools.caching = False
    process_state.apply_to(allocator)
    allocator._note_streams(True)  # PyTorch destroys none of its streams
    guard.watch(allocator)
    return allocator.tenant(TENANT)


def _refuse_pools_of_before(allocator: Allocator) -> None:
    """Refuse a device with pools: PyTorch numbers its pools the same way, and would use an existing one."""
    for pool in _ids_before:
        try:
            allocator.pools.use_count(pool)
        except PoolError:
            continue
        raise RequestError(
            f"pool {pool} of {allocator.device.name} was made before allotment.torch.install(); install it first"
        )
