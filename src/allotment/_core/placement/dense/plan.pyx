from libc.stddef cimport size_t
from libc.stdlib cimport free, malloc, qsort
from libc.string cimport memcpy

from allotment._core.contract.types cimport bytes_t
from allotment._core.mechanism.failure cimport host_memory_failed
from allotment._core.model.model cimport Failure
from allotment._core.placement.dense.arena cimport addresses_left, free_ends, is_shown_in
from allotment._core.placement.dense.plan cimport Plan, Terms
from allotment._core.placement.dense.structures cimport GRANULE, TILE_FREE, Arena, DenseChunk, Region, whole_granules

cdef enum:
    TAILS_TRIED = 4
    CHUNK_MOST = 268435456

cdef double MAP_US = 2.5
cdef double ACCESS_US = 30.0
cdef double CREATE_US = 14.5
cdef double LEFT_OVER_US = 5.0      # per MiB; values from 2 to 12 waste less than 0 or 20

cdef struct Stock:
    # The free memory that could be made contiguous.
    DenseChunk** whole          # wholly free chunks, largest first; of one size, youngest first
    size_t whole_count
    DenseChunk* tails[TAILS_TRIED]      # chunks with the longest free tails
    bytes_t tail_sizes[TAILS_TRIED]
    size_t tail_count
    DenseChunk** partly         # partly used chunks, with the sizes of their free heads
    bytes_t* heads
    size_t partly_count
    bint* taken                 # per chunk of `whole`: the current plan uses it
    DenseChunk** chosen         # the chunks of `whole` that the current plan uses
    double view_us, chunk_us


cdef int largest_first(const void* a, const void* b) noexcept nogil:
    cdef const DenseChunk* left = (<const DenseChunk**> a)[0]
    cdef const DenseChunk* right = (<const DenseChunk**> b)[0]
    if left.size != right.size:
        return -1 if left.size > right.size else 1
    return -1 if left.number > right.number else 1


cdef void note_tail(Stock* stock, DenseChunk* chunk, bytes_t tail) noexcept nogil:
    """Keep the few longest tails, longest first; among equal ones the older chunk first."""
    cdef size_t i = stock.tail_count
    if stock.tail_count < TAILS_TRIED:
        stock.tail_count += 1
    elif tail <= stock.tail_sizes[TAILS_TRIED - 1]:
        return
    else:
        i = TAILS_TRIED - 1
    while i > 0 and stock.tail_sizes[i - 1] < tail:
        stock.tails[i] = stock.tails[i - 1]
        stock.tail_sizes[i] = stock.tail_sizes[i - 1]
        i -= 1
    stock.tails[i] = chunk
    stock.tail_sizes[i] = tail


cdef bint take_stock(Arena* arena, Stock* stock) noexcept nogil:
    cdef DenseChunk* chunk = arena.first_chunk
    cdef bytes_t head, tail
    stock.whole_count = stock.partly_count = stock.tail_count = 0
    stock.whole = <DenseChunk**> malloc((arena.chunk_count + 1) * sizeof(DenseChunk*))
    stock.partly = <DenseChunk**> malloc((arena.chunk_count + 1) * sizeof(DenseChunk*))
    stock.heads = <bytes_t*> malloc((arena.chunk_count + 1) * sizeof(bytes_t))
    stock.taken = <bint*> malloc((arena.chunk_count + 1) * sizeof(bint))
    stock.chosen = <DenseChunk**> malloc((arena.chunk_count + 1) * sizeof(DenseChunk*))
    if (stock.whole == NULL or stock.partly == NULL or stock.heads == NULL or stock.taken == NULL
            or stock.chosen == NULL):
        return False
    while chunk != NULL:
        if chunk.live == 0:
            stock.whole[stock.whole_count] = chunk
            stock.whole_count += 1
        elif chunk.live < chunk.size:
            free_ends(arena, chunk, &head, &tail)
            if tail >= GRANULE:
                note_tail(stock, chunk, tail)
            if head >= GRANULE:
                stock.partly[stock.partly_count] = chunk
                stock.heads[stock.partly_count] = head
                stock.partly_count += 1
        chunk = chunk.next
    if stock.whole_count > 1:
        qsort(stock.whole, stock.whole_count, sizeof(DenseChunk*), &largest_first)
    stock.view_us = MAP_US + ACCESS_US * (1 + arena.engine.peer_count)
    stock.chunk_us = stock.view_us + CREATE_US
    return True


cdef void stock_clear(Stock* stock) noexcept nogil:
    free(stock.whole)
    free(stock.partly)
    free(stock.heads)
    free(stock.taken)
    free(stock.chosen)


cdef inline bint is_there(const Plan* plan, const DenseChunk* chunk) noexcept nogil:
    """Whether the plan's region already shows a chunk."""
    return chunk == plan.tail_of or (plan.region != NULL and is_shown_in(chunk, plan.region))


cdef bint add_head(const Stock* stock, Plan* plan, bytes_t* head) noexcept nogil:
    cdef size_t i
    head[0] = 0
    for i in range(stock.partly_count):
        if stock.heads[i] > head[0] and not is_there(plan, stock.partly[i]):
            head[0] = stock.heads[i]
            plan.head_of = stock.partly[i]
            plan.added = stock.partly[i].size
    return head[0] > 0


cdef bytes_t add_whole(Stock* stock, Plan* plan, bytes_t need, const Terms* terms) noexcept nogil:
    """Fill `need` bytes with wholly free chunks, and the rest with new memory. Return the bytes filled.

    Linear in the number of such chunks.
    """
    cdef bytes_t there = 0
    cdef bytes_t filled, rest
    cdef size_t first = 0
    cdef size_t i, chosen
    for i in range(stock.whole_count):
        stock.taken[i] = not terms.stitches or is_there(plan, stock.whole[i])
        if not stock.taken[i]:
            there += stock.whole[i].size
    plan.create = need - there if need > there else 0
    rest = need - plan.create
    filled = 0
    while rest > 0:
        if rest + plan.create <= terms.room:
            plan.create += rest
            break
        while stock.taken[first]:       # the largest one left; it exists, since `rest` is part of what is there
            first += 1
        chosen = i = first
        while i < stock.whole_count and stock.whole[i].size >= rest:
            if not stock.taken[i]:
                chosen = i
            i += 1
        stock.taken[chosen] = True
        plan.whole[plan.whole_count] = stock.whole[chosen]
        plan.whole_count += 1
        filled += stock.whole[chosen].size
        rest -= min(rest, stock.whole[chosen].size)
    filled += plan.create
    plan.added += filled
    return filled


cdef void keep(Plan* best, const Plan* plan) noexcept nogil:
    cdef DenseChunk** whole = best.whole
    memcpy(whole, plan.whole, plan.whole_count * sizeof(DenseChunk*))
    best[0] = plan[0]
    best.whole = whole


cdef void consider(Stock* stock, const Terms* terms, Region* region, DenseChunk* tail_of, bytes_t have, bint with_head,
                   Plan* best) noexcept nogil:
    cdef Plan plan
    cdef bytes_t rest = terms.size - min(have, terms.size)
    cdef bytes_t head = 0
    cdef bytes_t left_over
    cdef size_t pieces
    plan.region = region
    plan.tail_of = tail_of
    plan.head_of = NULL
    plan.whole = stock.chosen
    plan.whole_count = 0
    plan.added = 0
    if with_head:
        if not add_head(stock, &plan, &head):
            return
        rest -= min(rest, head)
    if tail_of != NULL:
        plan.added += tail_of.size
    left_over = have + head + add_whole(stock, &plan, whole_granules(rest), terms) - terms.size
    if region != NULL and plan.added > addresses_left(region):
        return
    pieces = plan.whole_count + (tail_of != NULL) + (plan.head_of != NULL)
    plan.beyond = plan.create - terms.room if plan.create > terms.room else 0
    plan.price = (pieces * stock.view_us + ((plan.create + CHUNK_MOST - 1) // CHUNK_MOST) * stock.chunk_us
                  + <double> plan.beyond / 1048576 * terms.mebibyte_us + <double> left_over / 1048576 * LEFT_OVER_US)
    if best.price < 0 or plan.price < best.price:
        keep(best, &plan)


cdef bint plan_cheapest(Arena* arena, const Terms* terms, Plan* best, Failure* failure) noexcept nogil:
    """Return False if host memory is short. A price below 0 means no plan. The caller clears `best` in any case."""
    cdef Stock stock
    cdef Region* region
    cdef bytes_t have
    cdef size_t i
    cdef int with_head
    best.price = -1
    best.whole = <DenseChunk**> malloc((arena.chunk_count + 1) * sizeof(DenseChunk*))
    if not take_stock(arena, &stock) or best.whole == NULL:
        stock_clear(&stock)
        return host_memory_failed(failure)
    for i in range(arena.region_count):
        region = arena.regions[i]
        have = region.last.block.size if region.last != NULL and region.last.state == TILE_FREE else 0
        for with_head in range(2 if terms.stitches else 1):
            consider(&stock, terms, region, NULL, have, with_head, best)
    for with_head in range((2 if terms.stitches else 1) if terms.new_regions else 0):
        consider(&stock, terms, NULL, NULL, 0, with_head, best)
    for i in range(stock.tail_count if terms.stitches and terms.new_regions else 0):
        for with_head in range(2):
            consider(&stock, terms, NULL, stock.tails[i], stock.tail_sizes[i], with_head, best)
    stock_clear(&stock)
    return True


cdef void plan_clear(Plan* plan) noexcept nogil:
    free(plan.whole)
