/* Every live allocation, with its library. The tables have their own memory. A spinlock guards them during the few
 * steps of a change, and no other code is called under it. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>

#include "parts.h"

typedef struct Table { Entry* entries; size_t capacity, used; } Table;     /* open addressing; key 0 is free */
enum { ADDRESSES, SERVED, HANDLES, MAPPINGS, TABLES };     /* a served block may have the address of its segment */
enum { FIRST_CAPACITY = 4096 };

/* What `more` of a chunk contains: handles below, mappings above them, and its number, because the driver may use the
 * handle's value again before the last unmapping is noted. */
enum { MAPPING_BITS = 16, NUMBER_BITS = 40 };
#define HOLDS (((uint64_t)1 << NUMBER_BITS) - 1)

static Table tables[TABLES];
static Sum sums[DEVICES][LIBRARIES];
static Standing standings[DEVICES];
static uint64_t uncounted[DEVICES];     /* the most that the driver uses of the device beyond what is held */
static struct { uint64_t bytes, calls; } by_stack[STACKS];
static uint64_t chunks;                  /* made so far */
static Spin lock = ATOMIC_FLAG_INIT;

void ledger_lock(void) { spin_lock(&lock); }
void ledger_unlock(void) { spin_unlock(&lock); }

/* The upper half of the product depends on every bit of the key; segments differ in their upper bits only. */
static size_t wanted_place(const Table* table, uint64_t key) {
    return key * 0x9E3779B97F4A7C15ull >> 32 & (table->capacity - 1);
}

static size_t place_of(const Table* table, uint64_t key) {
    size_t at = wanted_place(table, key);
    while (table->entries[at].key && table->entries[at].key != key) at = (at + 1) & (table->capacity - 1);
    return at;
}

static int make_room(Table* table) {
    if (table->capacity && table->used * 2 < table->capacity) return 1;
    Table larger = {.capacity = table->capacity ? table->capacity * 2 : FIRST_CAPACITY, .used = table->used};
    size_t size = larger.capacity * sizeof(Entry);
    larger.entries = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (larger.entries == MAP_FAILED) return 0;
    for (size_t at = 0; at < table->capacity; at++)
        if (table->entries[at].key) larger.entries[place_of(&larger, table->entries[at].key)] = table->entries[at];
    if (table->capacity) munmap(table->entries, table->capacity * sizeof(Entry));
    *table = larger;
    return 1;
}

static Entry* find(Table* table, uint64_t key) {
    if (!table->capacity || !key) return NULL;
    Entry* entry = &table->entries[place_of(table, key)];
    return entry->key ? entry : NULL;
}

static void erase(Table* table, Entry* entry) {
    size_t mask = table->capacity - 1, hole = (size_t)(entry - table->entries);
    for (size_t at = (hole + 1) & mask; table->entries[at].key; at = (at + 1) & mask) {
        size_t wanted = wanted_place(table, table->entries[at].key);
        if (((at - wanted) & mask) < ((at - hole) & mask)) continue;
        table->entries[hole] = table->entries[at];
        hole = at;
    }
    table->entries[hole].key = 0;
    table->used--;
}

static int is_served(const Entry* entry) { return entry->kind == KIND_SERVED || entry->kind == KIND_SERVED_ASYNC; }

/* `held` is separate: it is charged before the driver is asked, and discharged when the driver has freed. */
static void count_in(const Entry* entry) {
    Sum* sum = &sums[entry->device][entry->library];
    *(is_served(entry) ? &sum->served : &sum->driver) += entry->size;
    sum->calls++;
    if (sum->driver + sum->served > sum->peak) sum->peak = sum->driver + sum->served;
    if (entry->kind == KIND_ASYNC) standings[entry->device].pooled += entry->size;
    by_stack[entry->stack].bytes += entry->size;
    by_stack[entry->stack].calls++;
}

static void count_out(const Entry* entry) {
    Sum* sum = &sums[entry->device][entry->library];
    *(is_served(entry) ? &sum->served : &sum->driver) -= entry->size;
    if (entry->kind == KIND_ASYNC) standings[entry->device].pooled -= entry->size;
    by_stack[entry->stack].bytes -= entry->size;
}

/* Removes an entry whose free was not seen, or which ended with its context. */
static void forget(const Entry* entry) {
    count_out(entry);
    if (!is_served(entry)) standings[entry->device].held -= entry->size;
}

/* Counts out an entry whose memory the driver is about to free, or has just freed. */
static void begin_to_free(const Entry* entry) {
    count_out(entry);
    if (is_served(entry)) return;
    standings[entry->device].moving += entry->size;
    standings[entry->device].freed += entry->size;
}

int ledger_add(const Entry* entry) {
    Table* table = &tables[is_served(entry) ? SERVED : entry->kind == KIND_CHUNK ? HANDLES
                           : entry->kind == KIND_MAPPING ? MAPPINGS : ADDRESSES];
    ledger_lock();
    int has_room = entry->key && make_room(table);
    if (has_room) {
        Entry* place = &table->entries[place_of(table, entry->key)];
        if (!place->key) table->used++;
        else if (entry->kind != KIND_MAPPING) forget(place);
        *place = *entry;
        if (entry->kind == KIND_CHUNK) place->more |= ++chunks << NUMBER_BITS;
        if (entry->kind != KIND_MAPPING) count_in(entry);
        if (entry->kind == KIND_MAPPING) {
            Entry* chunk = find(&tables[HANDLES], entry->more);
            if (chunk) {
                chunk->more += (uint64_t)1 << MAPPING_BITS;
                place->stack = (uint32_t)(chunk->more >> NUMBER_BITS);
                place->device = chunk->device;
            }
        }
    }
    ledger_unlock();
    if (!has_room) say(SAID_FULL, "the host has no memory for the ledger; what is allocated now is not counted");
    return has_room;
}

static int take_from(Table* table, uint64_t address, Entry* entry) {
    ledger_lock();
    Entry* found = find(table, address);
    if (found) {
        *entry = *found;
        begin_to_free(found);
        erase(table, found);
    }
    ledger_unlock();
    return found != NULL;
}
int ledger_take(uint64_t address, Entry* entry) { return take_from(&tables[ADDRESSES], address, entry); }
int ledger_take_served(uint64_t address, Entry* entry) {
    return options.depth == DEPTH_SERVE && take_from(&tables[SERVED], address, entry);
}

int ledger_library(uint64_t address) {
    ledger_lock();
    const Entry* found = find(&tables[ADDRESSES], address);
    int library = found ? found->library : -1;
    ledger_unlock();
    return library;
}

int ledger_find_served(uint64_t address, Entry* entry) {
    if (options.depth != DEPTH_SERVE) return 0;
    ledger_lock();
    Entry* found = find(&tables[SERVED], address);
    for (size_t at = 0; at < tables[SERVED].capacity && !found; at++) {
        Entry* here = &tables[SERVED].entries[at];
        if (here->key && here->key < address && address - here->key < here->size) found = here;
    }
    if (found) *entry = *found;
    ledger_unlock();
    return found != NULL;
}

/* pre: locked. Counts holds of a chunk in or out, and removes it if that was its last. */
static int change_chunk(Entry* chunk, uint64_t change, Entry* ended) {
    if (!chunk) return 0;
    chunk->more += change;
    if (chunk->more & HOLDS) return 0;
    *ended = *chunk;
    begin_to_free(chunk);
    erase(&tables[HANDLES], chunk);
    return 1;
}

int ledger_chunk(uint64_t handle, int references, Entry* ended) {
    ledger_lock();
    int has_ended = change_chunk(find(&tables[HANDLES], handle), (uint64_t)(int64_t)references, ended);
    ledger_unlock();
    return has_ended;
}

uint64_t ledger_unmap(uint64_t address, Entry* ended, int* has_ended) {
    uint64_t size = 0;
    ledger_lock();
    Entry* mapping = find(&tables[MAPPINGS], address);
    *has_ended = 0;
    if (mapping) {
        Entry* chunk = find(&tables[HANDLES], mapping->more);
        int is_same = chunk && (uint32_t)(chunk->more >> NUMBER_BITS) == mapping->stack;
        size = mapping->size;
        erase(&tables[MAPPINGS], mapping);
        *has_ended = change_chunk(is_same ? chunk : NULL, -((uint64_t)1 << MAPPING_BITS), ended);
    }
    ledger_unlock();
    return size;
}

void ledger_sum(int device, int library, Sum* sum) {
    ledger_lock();
    *sum = sums[device][library];
    ledger_unlock();
}
void ledger_standing(int device, Standing* standing) {
    ledger_lock();
    *standing = standings[device];
    ledger_unlock();
}
int ledger_charge(int device, uint64_t size, uint64_t most) {
    ledger_lock();
    uint64_t there = standings[device].held + uncounted[device];
    int fits = size <= most && there <= most - size;
    if (fits) {
        standings[device].held += size;
        standings[device].moving += size;
    }
    ledger_unlock();
    return fits;
}
void ledger_settle(const Entry* entry, int is_held, int is_kept) {
    ledger_lock();
    standings[entry->device].moving -= entry->size;
    if (!is_held) {
        standings[entry->device].held -= entry->size;
        if (is_kept && options.limit) uncounted[entry->device] += entry->size;     /* until it is measured */
    }
    ledger_unlock();
}
/* `used` contains at least the memory that moved neither before the driver was asked nor meanwhile. */
int ledger_measured(int device, const Standing* before, uint64_t used) {
    ledger_lock();
    Standing* now = &standings[device];
    uint64_t gone = now->freed - before->freed, still = before->held - before->moving;
    still = still > gone ? still - gone : 0;
    uncounted[device] = used > still ? used - still : 0;
    int is_quiet = !before->moving && !gone && now->held == before->held;
    ledger_unlock();
    return is_quiet;
}
uint64_t ledger_stack_bytes(uint32_t stack, uint64_t* calls) {
    ledger_lock();
    uint64_t bytes = by_stack[stack].bytes;
    *calls = by_stack[stack].calls;
    ledger_unlock();
    return bytes;
}

void ledger_empty(void) {
    for (int table = 0; table < TABLES; table++) {
        if (tables[table].capacity) memset(tables[table].entries, 0, tables[table].capacity * sizeof(Entry));
        tables[table].used = 0;
    }
    memset(sums, 0, sizeof sums);
    memset(standings, 0, sizeof standings);
    memset(uncounted, 0, sizeof uncounted);
    memset(by_stack, 0, sizeof by_stack);
}

static int ends_with(const Entry* entry, int device, uint64_t context, int is_primary) {
    if (!entry->key || entry->device != device) return 0;
    return entry->kind == KIND_PLAIN || entry->kind == KIND_MANAGED ? entry->more == context : is_primary;
}
/* Pools, chunks and what we serve are taken to belong to the primary context. */
void ledger_forget_context(int device, uint64_t context, int is_primary) {
    ledger_lock();
    for (int table = 0; table < TABLES; table++)
        for (size_t at = 0; at < tables[table].capacity;) {
            Entry* entry = &tables[table].entries[at];
            if (!ends_with(entry, device, context, is_primary)) { at++; continue; }
            if (table != MAPPINGS) forget(entry);
            erase(&tables[table], entry);       /* another entry may have taken the place */
        }
    ledger_unlock();
}
