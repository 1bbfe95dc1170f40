"""Limits: how much memory a pool may have, and when its cache is released before it grows.

Four limits apply, and the narrowest counts: the allocator's, the pool's own (`Limits.hard`), the guarantees of other
pools (`Limits.guaranteed`, as far as those do not hold the memory yet), and, for memory in use, the tenant's
(`Account`). A soft limit refuses nothing: cached memory is released first.

Checked when a pool wants more memory, which is rare. A tenant's limit is checked at each request, but only while some
tenant has one.
"""

from allotment._core.contract.types cimport bytes_t
from allotment._core.model.model cimport Engine, Failure, Limits, Pool, Request

cdef void limits_set(Engine* engine, Pool* pool, const Limits* limits) noexcept nogil
cdef void soft_limit_set(Engine* engine, bytes_t soft) noexcept nogil
# False when host memory is short. pre: if the accounts are new, the caller counts what tenants hold into `held`
cdef bint accounts_open(Engine* engine) noexcept nogil
# The bytes that the limits leave for a pool; stores whose limit it is in the failure, without a reason.
cdef bytes_t room_within_limits(const Engine* engine, const Pool* pool, Failure* failure) noexcept nogil
# The bytes that a pool may still reserve without passing a soft limit.
cdef bytes_t room_below_soft_limits(const Engine* engine, const Pool* pool) noexcept nogil
# Releases cached memory so that `more` bytes fit below the soft limits; best effort. Has an unlocked section.
cdef bint release_for_soft_limit(Engine* engine, Request* request, bytes_t more) noexcept nogil
# Whether the tenant of a request may have it; if False, the request's failure has all facts.
cdef bint tenant_may_have(Engine* engine, Request* request) noexcept nogil
