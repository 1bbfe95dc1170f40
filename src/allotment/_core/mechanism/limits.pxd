"""Limits: how much memory a pool may have, and when its cache is released before it grows.

Four limits apply, and the narrowest counts: the allocator's; the pool's own (`Limits.hard`); the guarantees of other
pools (`Limits.guaranteed`, as far as those pools do not hold the memory yet); and, for memory in use, the tenant's
(`Account`). A soft limit refuses nothing: it makes the engine release cached memory first.

The engine checks limits when a pool wants more memory, which is rare. It checks a tenant's limit at each request, but
only while some tenant has one.
"""

from allotment._core.contract.types cimport bytes_t
from allotment._core.model.model cimport Engine, Failure, Limits, Pool, Request

cdef void limits_set(Engine* engine, Pool* pool, const Limits* limits) noexcept nogil
cdef void soft_limit_set(Engine* engine, bytes_t soft) noexcept nogil
# Returns False if host memory is short. pre: if the accounts are new, the caller adds what tenants hold to `held`
cdef bint accounts_open(Engine* engine) noexcept nogil
# Returns the bytes that the limits leave for a pool; stores the owner of the narrowest limit in the failure, without a
# reason.
cdef bytes_t room_within_limits(const Engine* engine, const Pool* pool, Failure* failure) noexcept nogil
# Returns the bytes that a pool may still reserve without exceeding a soft limit.
cdef bytes_t room_below_soft_limits(const Engine* engine, const Pool* pool) noexcept nogil
# Releases cached memory so that `more` bytes fit below the soft limits; best effort. Has an unlocked section.
cdef bint release_for_soft_limit(Engine* engine, Request* request, bytes_t more) noexcept nogil
# Whether a request stays within its tenant's limit; if not, the request's failure has all facts.
cdef bint tenant_may_have(Engine* engine, Request* request) noexcept nogil
