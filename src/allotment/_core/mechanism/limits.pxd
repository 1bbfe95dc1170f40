"""Limits: how much a pool may have, and when its cache goes back before it gets more.

Four stand side by side, and the narrowest counts: the allocator's, the pool's own (`Limits.hard`), what is guaranteed
to other pools (`Limits.guaranteed`, as far as they do not have it yet), and, of memory in use, the tenant's
(`Account`). A soft limit refuses nothing: what is cached goes back first.

Asked when a pool wants more memory, which is rare; a tenant's at each request, and only while some tenant has one.
"""

from allotment._core.contract.types cimport bytes_t
from allotment._core.model.model cimport Engine, Failure, Limits, Pool, Request

cdef void limits_set(Engine* engine, Pool* pool, const Limits* limits) noexcept nogil
cdef void soft_limit_set(Engine* engine, bytes_t soft) noexcept nogil
# False without host memory for the accounts. pre: what tenants hold is counted into `held` by the caller, if it is new
cdef bint accounts_open(Engine* engine) noexcept nogil
# What the limits leave for a pool; whose limit it is goes into the failure, without a reason.
cdef bytes_t room_within_limits(const Engine* engine, const Pool* pool, Failure* failure) noexcept nogil
# What a pool may still reserve without passing a soft limit.
cdef bytes_t room_below_soft_limits(const Engine* engine, const Pool* pool) noexcept nogil
# Give cached memory back so that `more` bytes fit below the soft limits, as far as that goes. Steps out.
cdef bint release_for_soft_limit(Engine* engine, Request* request, bytes_t more) noexcept nogil
# Whether the tenant of a request may have it; False with all the facts in the request's failure.
cdef bint tenant_may_have(Engine* engine, Request* request) noexcept nogil
