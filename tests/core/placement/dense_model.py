"""Dense placement in plain Python: what the engine must decide, written for reading and not for speed.

Lists instead of trees, everything recomputed instead of kept. Places are (region number, offset); a test compares them
with the engine's addresses. The words are those of `src/allotment/_core/placement/dense/structures.pxd`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
PAGE = 2 * MIB
LARGE = 4 * MIB  # from here on equal sizes are kept together
PASSED_OVER = 64  # tiles that are looked at, at most, before a search gives up
PIECES = 64  # of a plan, at most
CLOCK_STREAMS = 4  # of a clock, before the rest is folded
CHUNK_MOST = 512 * MIB
VIEW_US, CHUNK_US = 32.5, 47.0
MICRO = 1_000_000


def up(size: int, unit: int = PAGE) -> int:
    return -(-size // unit) * unit


def down(size: int, unit: int = PAGE) -> int:
    return size // unit * unit


class OutOfMemory(Exception):
    pass


@dataclass
class Options:
    grain: int = 24
    slack: float = 0.01
    wait_reuse: int | None = 2  # None: off
    share_streams: bool = True
    start: int = 0
    views: int = 8


# --- who is ordered after whom --------------------------------------------------------------------------------------


class Clock:
    """The last free of any byte of a free tile, by stream: {stream: tick}, and one tick for all that were folded."""

    def __init__(self, ticks: dict[int, int] | None = None, everyone: int = 0) -> None:
        self.ticks = dict(ticks or {})
        self.everyone = everyone

    def copy(self) -> Clock:
        return Clock(self.ticks, self.everyone)

    def note(self, stream: int, tick: int) -> None:
        self.ticks[stream] = max(tick, self.ticks.get(stream, 0))
        if len(self.ticks) > CLOCK_STREAMS:
            oldest = min(self.ticks, key=lambda one: self.ticks[one])
            self.everyone = max(self.everyone, self.ticks.pop(oldest))

    def join(self, other: Clock) -> None:
        for stream, tick in other.ticks.items():
            self.note(stream, tick)
        self.everyone = max(self.everyone, other.everyone)


class Streams:
    """`synced[s, a]` is the tick up to which s is ordered after a; `done[a]` the tick up to which a has finished."""

    def __init__(self) -> None:
        self.tick = 0
        self.synced: dict[tuple[int, int], int] = {}
        self.done: dict[int, int] = {}
        self.latest: dict[int, int] = {}  # the last tick that a clock may hold of a stream
        self.known: list[int] = []

    def meet(self, stream: int) -> None:
        if stream not in self.known:
            self.known.append(stream)

    def stamp(self, stream: int) -> int:
        self.tick += 1
        self.latest[stream] = self.tick
        return self.tick

    def is_past(self, stream: int, other: int, tick: int) -> bool:
        return stream == other or tick <= self.synced.get((stream, other), 0) or tick <= self.done.get(other, 0)

    def uncovered(self, clock: Clock, stream: int) -> list[int]:
        """The streams that `stream` must be ordered after before it can have memory with this clock."""
        found = [other for other, tick in clock.ticks.items() if not self.is_past(stream, other, tick)]
        if clock.everyone:
            for other in self.known:
                tick = min(clock.everyone, self.latest.get(other, 0))
                if other not in found and not self.is_past(stream, other, tick):
                    found.append(other)
        return found

    def covers(self, clock: Clock, stream: int) -> bool:
        return not self.uncovered(clock, stream)

    def order_after(self, stream: int, other: int) -> None:
        self.synced[stream, other] = self.tick

    def all_done(self) -> None:
        for stream in self.known:
            self.done[stream] = self.tick


# --- memory and addresses -------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Chunk:
    number: int
    size: int
    live: int = 0
    views: list[View] = field(default_factory=list)  # the first is its home


@dataclass(eq=False)
class View:
    chunk: Chunk
    region: Region
    offset: int
    live: int = 0
    last_use: int = 0

    @property
    def end(self) -> int:
        return self.offset + self.chunk.size


@dataclass(eq=False)
class Tile:
    region: Region
    offset: int
    size: int
    state: str  # "free", "used", "shadow", "unmapped"
    clock: Clock = field(default_factory=Clock)
    stream: int = 0  # used: its owner's
    user: Tile | None = None  # shadow: of which tile
    shadows: list[Tile] = field(default_factory=list)
    uses: list[int] = field(default_factory=list)
    events: dict[int, int] = field(default_factory=dict)  # pending: user stream -> tick of its event
    freed_at: int = 0  # pending: the order of frees

    @property
    def end(self) -> int:
        return self.offset + self.size

    @property
    def place(self) -> tuple[int, int]:
        return self.region.number, self.offset


@dataclass(eq=False)
class Region:
    number: int
    base: int  # from the first address the arena has reserved
    size: int
    tiles: list[Tile] = field(default_factory=list)  # up to `filled`
    views: list[View] = field(default_factory=list)  # by offset

    @property
    def filled(self) -> int:
        return self.tiles[-1].end if self.tiles else 0

    @property
    def left(self) -> int:
        return self.size - self.filled

    @property
    def tail(self) -> Tile | None:
        """The free tile at the end."""
        return self.tiles[-1] if self.tiles and self.tiles[-1].state == "free" else None

    def at(self, offset: int) -> Tile:
        return next(tile for tile in self.tiles if tile.offset <= offset < tile.end)

    def under(self, offset: int, size: int) -> list[View]:
        return [view for view in self.views if view.offset < offset + size and offset < view.end]


@dataclass
class Plan:
    region: Region | None  # None: a new one
    tail_of: Chunk | None = None
    whole: list[Chunk] = field(default_factory=list)
    create: int = 0
    head_of: Chunk | None = None
    added: int = 0  # addresses it fills
    beyond: int = 0  # of what is created, above the room
    price: float = math.inf


class Arena:
    """All memory of one pool."""

    def __init__(self, memory: Memory, private: bool) -> None:
        self.memory = memory
        self.private = private
        self.options = memory.options
        self.streams = memory.streams
        self.regions: list[Region] = []
        self.chunks: list[Chunk] = []
        self.numbered = 0
        self.reserved = self.active = self.peak = self.freed = 0
        self.loading = True
        self.requests = 0
        self.carved = 0  # addresses given to regions

    # --- finding ----------------------------------------------------------------------------------------------

    def free_tiles(self) -> list[Tile]:
        return [tile for region in self.regions for tile in region.tiles if tile.state == "free"]

    def hit(self, size: int, stream: int) -> tuple[Tile, int] | None:
        """A tile and the offset in its region at which the request gets its bytes."""
        fitting = [tile for tile in self.free_tiles() if tile.size >= size]
        if size >= LARGE:
            exact = [tile for tile in fitting if tile.size == size][:PASSED_OVER]
            for tile in exact:
                if self.streams.covers(tile.clock, stream):
                    return tile, tile.offset
            found = self.beside_equal(size, stream)
            if found is not None:
                return found
        for tile in fitting[:PASSED_OVER]:
            if self.streams.covers(tile.clock, stream):
                return tile, tile.offset
        return None

    def beside_equal(self, size: int, stream: int) -> tuple[Tile, int] | None:
        looked_at = 0
        for region in self.regions:
            around = [None, *region.tiles, None]
            for i, tile in enumerate(region.tiles):
                before, behind = around[i], around[i + 2]
                if tile.state != "free":
                    continue
                for neighbour, offset in ((before, tile.offset), (behind, tile.end - size)):
                    if neighbour is None or neighbour.state != "used" or neighbour.size != size:
                        continue
                    looked_at += 1
                    if looked_at > PASSED_OVER:
                        return None
                    if tile.size >= size and self.streams.covers(tile.clock, stream):
                        return tile, offset
        return None

    def any_fit(self, size: int) -> tuple[Tile, int] | None:
        return next(((tile, tile.offset) for tile in self.free_tiles() if tile.size >= size), None)

    def find(self, size: int, stream: int) -> tuple[Tile, int] | None:
        """Steps 1 to 4."""
        found = self.hit(size, stream)
        if found is None and self.options.share_streams and not self.private:
            found = self.any_fit(size)
            if found is not None:
                self.wait_for(found[0], stream)
        return found

    def wait_for(self, tile: Tile, stream: int) -> None:
        for other in self.streams.uncovered(tile.clock, stream):
            self.streams.order_after(stream, other)

    # --- handing out and taking back ----------------------------------------------------------------------------

    def cut(self, region: Region, offset: int, size: int, state: str) -> Tile:
        """Make one tile of bytes that are inside one free tile."""
        whole = region.at(offset)
        assert whole.state == "free" and offset + size <= whole.end
        i = region.tiles.index(whole)
        piece = Tile(region, offset, size, state)
        parts = [piece]
        if offset > whole.offset:
            parts.insert(0, Tile(region, whole.offset, offset - whole.offset, "free", whole.clock.copy()))
        if whole.end > piece.end:
            parts.append(Tile(region, piece.end, whole.end - piece.end, "free", whole.clock.copy()))
        region.tiles[i : i + 1] = parts
        return piece

    def hand_out(self, region: Region, offset: int, size: int, stream: int) -> Tile:
        self.requests += 1
        tile = self.cut(region, offset, size, "used")
        tile.stream = stream
        for view in region.under(offset, size):
            low, high = max(offset, view.offset), min(offset + size, view.end)
            view.chunk.live += high - low
            view.live += high - low
            view.last_use = self.requests
            for other in view.chunk.views:
                if other is not view:
                    shadow = self.cut(other.region, other.offset + low - view.offset, high - low, "shadow")
                    shadow.user = tile
                    tile.shadows.append(shadow)
        self.active += size
        self.memory.active += size
        self.memory.arena.peak = max(self.memory.arena.peak, self.memory.active)
        return tile

    def join(self, tile: Tile) -> None:
        """Join a free tile with its free neighbours."""
        tiles = tile.region.tiles
        i = tiles.index(tile)
        if i + 1 < len(tiles) and tiles[i + 1].state == "free":
            tile.clock.join(tiles[i + 1].clock)
            tile.size += tiles.pop(i + 1).size
        if i > 0 and tiles[i - 1].state == "free":
            before = tiles.pop(i - 1)
            clock = before.clock
            clock.join(tile.clock)
            tile.clock = clock
            tile.offset, tile.size = before.offset, before.size + tile.size

    def release(self, tile: Tile) -> None:
        """The tile's bytes are free in every view."""
        clock = Clock()
        for stream, tick in tile.events.items():
            clock.note(stream, tick)
        clock.note(tile.stream, self.streams.stamp(tile.stream))
        for view in tile.region.under(tile.offset, tile.size):
            part = min(tile.end, view.end) - max(tile.offset, view.offset)
            view.chunk.live -= part
            view.live -= part
        self.active -= tile.size
        self.memory.active -= tile.size
        if self.loading:
            self.freed += tile.size
            self.loading = self.freed <= max(MIB, self.peak // 32)
        for one in [tile, *tile.shadows]:
            one.state, one.clock = "free", clock.copy()
            self.join(one)
        tile.shadows, tile.events = [], {}

    # --- growing ------------------------------------------------------------------------------------------------

    def is_pressed(self) -> bool:
        """Whether more than a quarter of all that can be had is held."""
        return self.memory.reserved > self.memory.obtainable // 4

    def limits(self, size: int) -> tuple[int, int, int]:
        """P', the room for new memory, and what the device or the limit leaves at most."""
        peak = max(self.peak, self.memory.active + size)
        slack = max(int(self.options.slack * MICRO) * peak // MICRO, min(24 * MIB, peak // 4))
        if self.loading:
            slack = max(slack, peak * 6 // 100)
        left = self.memory.obtainable - self.memory.reserved
        room = down(max(0, min(peak + slack - self.memory.reserved, left)))
        return peak, room, left

    def grow(self, size: int, stream: int, last: bool = False) -> Region:
        """Step 7: the region that has grown. Raises OutOfMemory before anything has changed."""
        peak, room, left = self.limits(size)
        if self.private or not self.memory.may_wait:
            return self.grow_plainly(size, stream, left)
        region = self.home_region()
        tail = region.tail.size if region.tail else 0
        need = up(size - tail)
        pressed = self.is_pressed()
        if need <= room and need <= region.left and not last:
            ahead = 0 if pressed else min(room, region.left, up(max(16 * MIB, self.memory.reserved // 50)))
            self.create(region, max(need, ahead))
            return region
        plan = self.cheapest_plan(size, room, pressed, last)
        if plan is None:
            raise OutOfMemory
        if plan.beyond and not pressed and not last:
            more = max(plan.create, up(peak // 200)) - plan.create
            if plan.create + more <= left and (plan.region is None or plan.added + more <= plan.region.left):
                plan.create += more
                plan.added += more
        if plan.create > left:
            raise OutOfMemory
        return self.carry_out(plan)

    def grow_plainly(self, size: int, stream: int, left: int) -> Region:
        """New memory alone, behind a tail that `stream` may use, or in a region of its own."""
        for region in self.regions:
            tail = region.tail
            usable = tail.size if tail and self.streams.covers(tail.clock, stream) else 0
            need = up(size - usable)
            if (tail is None or usable) and need <= region.left:
                break
        else:
            need = up(size)
            region = None
        if need > left:
            raise OutOfMemory
        region = region or self.new_region(need)
        self.create(region, need)
        return region

    def home_region(self) -> Region:
        return self.regions[0] if self.regions else self.new_region(0)

    def new_region(self, size: int) -> Region:
        total = self.memory.total
        if not self.regions:
            wanted = up(2 * total)
        else:
            wanted = up(max(8 * size, min(4 * GIB, total)))
        region = Region(len(self.regions), self.carved, wanted)
        self.carved += wanted
        self.regions.append(region)
        return region

    def chunk_most(self, new: int, left: int) -> int:
        """The largest chunk when `left` of `new` bytes are still to be made."""
        if self.is_pressed():
            return max(4 * MIB, up(self.memory.obtainable // 512))
        grain = self.options.grain
        most = max(1152 * MIB // grain, max(self.memory.reserved, self.memory.active + left) // grain, 2 * new // grain)
        return min(CHUNK_MOST, up(most))

    def create(self, region: Region, new: int) -> None:
        left = new
        self.memory.ask_device()
        while left > 0:
            most = self.chunk_most(new, left)
            size = min(left, most)
            if 0 < left - size < size // 4:
                size = up(left // 2)
            chunk = Chunk(self.numbered, size)
            self.numbered += 1
            self.chunks.append(chunk)
            self.reserved += size
            self.memory.reserved += size
            self.memory.created += 1
            view = View(chunk, region, region.filled)
            chunk.views.append(view)
            region.views.append(view)
            tile = Tile(region, view.offset, size, "free")
            region.tiles.append(tile)
            self.join(tile)
            left -= size

    def add_view(self, region: Region, chunk: Chunk) -> None:
        source = chunk.views[0]
        view = View(chunk, region, region.filled, last_use=self.requests)
        for tile in list(source.region.tiles):
            low, high = max(tile.offset, source.offset), min(tile.end, source.end)
            if low >= high:
                continue
            copy = Tile(region, view.offset + low - source.offset, high - low, "free", tile.clock.copy())
            region.tiles.append(copy)
            if tile.state == "free":
                self.join(copy)
            else:
                copy.state = "shadow"
                copy.user = tile if tile.state == "used" else tile.user
                copy.user.shadows.append(copy)
        region.views.append(view)
        chunk.views.append(view)
        self.memory.mapped += 1

    def free_ends(self, chunk: Chunk) -> tuple[int, int]:
        """The free bytes at the head and at the tail of a chunk."""
        view = chunk.views[0]
        head = tail = 0
        for tile in view.region.tiles:
            if tile.state == "free" and tile.offset < view.end and tile.end > view.offset:
                if tile.offset <= view.offset:
                    head = min(tile.end, view.end) - view.offset
                if tile.end >= view.end:
                    tail = view.end - max(tile.offset, view.offset)
        return head, tail

    def cheapest_plan(self, size: int, room: int, pressed: bool, last: bool) -> Plan | None:
        whole = sorted((c for c in self.chunks if c.live == 0), key=lambda c: (-c.size, -c.number))
        partly = [(c, *self.free_ends(c)) for c in self.chunks if c.live > 0]
        tails = sorted(((tail, chunk) for chunk, _, tail in partly if tail >= PAGE), key=lambda x: (-x[0], x[1].number))
        best: Plan | None = None
        starts: list[tuple[Region | None, Chunk | None, int]] = [
            (region, None, region.tail.size if region.tail else 0) for region in self.regions
        ]
        starts.append((None, None, 0))
        if self.options.views > 1:
            starts += [(None, chunk, tail) for tail, chunk in tails[:4]]
        for region, tail_of, have in starts:
            for with_head in (False, True) if self.options.views > 1 else (False,):
                plan = self.plan(size, room, pressed, last, region, tail_of, have, with_head, whole, partly)
                if plan is not None and (best is None or plan.price < best.price):
                    best = plan
        return best

    def plan(self, size, room, pressed, last, region, tail_of, have, with_head, whole, partly) -> Plan | None:
        def is_there(chunk: Chunk) -> bool:
            return chunk is tail_of or (region is not None and any(view.region is region for view in chunk.views))

        plan = Plan(region, tail_of)
        rest = size - have
        if with_head:
            heads = [(head, -chunk.number, chunk) for chunk, head, _ in partly if head >= PAGE and not is_there(chunk)]
            if not heads:
                return None
            head, _, plan.head_of = max(heads, key=lambda x: x[:2])
            rest -= head
        need = up(rest) if rest > 0 else 0
        stock = [chunk for chunk in whole if not is_there(chunk)] if self.options.views > 1 else []
        plan.create = max(0, need - sum(chunk.size for chunk in stock))
        rest = need - plan.create
        while rest > 0:
            if rest <= room - plan.create:
                plan.create += rest
                break
            covering = [chunk for chunk in stock if chunk.size >= rest]
            chosen = covering[-1] if covering else stock[0]
            stock.remove(chosen)
            plan.whole.append(chosen)
            rest -= chosen.size
        pieces = len(plan.whole) + (tail_of is not None) + (plan.head_of is not None)
        if len(plan.whole) > PIECES - 2:
            return None
        plan.added = sum(c.size for c in [tail_of, plan.head_of, *plan.whole] if c is not None) + plan.create
        if region is not None and region.filled + plan.added > region.size:
            return None
        plan.beyond = max(0, plan.create - room)
        per_mib = 1e9 if last else 1000.0 if pressed else 20.0 * self.options.grain / 24
        plan.price = pieces * VIEW_US + math.ceil(plan.create / CHUNK_MOST) * CHUNK_US + plan.beyond / MIB * per_mib
        return plan

    def carry_out(self, plan: Plan) -> Region:
        region = plan.region if plan.region is not None else self.new_region(plan.added)
        if plan.create:
            self.memory.ask_device()
            self.memory.refusals.append(False)
        if plan.tail_of is not None:
            self.add_view(region, plan.tail_of)
        for chunk in plan.whole:
            self.add_view(region, chunk)
        if plan.create:
            self.create(region, plan.create)
        if plan.head_of is not None:
            self.add_view(region, plan.head_of)
        return region


class Memory:
    """Everything: the arenas, what waits for streams, limit and device."""

    def __init__(self, total: int, limit: int | None = None, options: Options | None = None) -> None:
        self.total = total
        self.limit = limit
        self.options = options or Options()
        self.streams = Streams()
        self.reserved = self.active = self.created = self.mapped = 0
        self.may_wait = True
        self.arena = Arena(self, private=False)
        self.pending: list[Tile] = []
        self.refusals: list[bool] = []  # whether the device refuses, the next call last
        self.finished: dict[int, int] = {}  # what the device would say: events up to this tick are over
        self.owner: dict[int, Arena] = {}

    @property
    def obtainable(self) -> int:
        """What can be held at most: what is, and what the limit and the device leave."""
        most = self.total if self.limit is None else min(self.limit, self.total)
        return max(most, self.reserved)

    def ask_device(self) -> None:
        """New memory. Raises OutOfMemory if the device was told to refuse it."""
        if self.refusals and self.refusals.pop():
            raise OutOfMemory

    def malloc(self, asked: int, stream: int = 0, arena: Arena | None = None) -> Tile:
        arena = arena or self.arena
        size = up(asked, 512)
        if not arena.private:
            self.poll()
        self.streams.meet(stream)
        found = arena.find(size, stream)
        if found is None and not arena.private and self.options.wait_reuse is not None:
            found = self.reuse_waiting(arena, size, stream, self.options.wait_reuse)
        if found is None:
            found = self.grow(arena, size, stream)
        tile, offset = found
        used = arena.hand_out(tile.region, offset, size, stream)
        self.owner[id(used)] = arena
        return used

    def reuse_waiting(self, arena: Arena, size: int, stream: int, kept: int) -> tuple[Tile, int] | None:
        """Step 5: memory that still waits for other streams, oldest first."""
        while True:
            mine = [tile for tile in self.pending if self.owner[id(tile)] is arena]
            many = {tile.stream for tile in mine if sum(t.stream == tile.stream for t in mine) > kept}
            tile = next((tile for tile in mine if tile.stream in many), None)
            if tile is None:
                return None
            for user, tick in tile.events.items():
                known = self.streams.synced.get((stream, user), 0)
                self.streams.synced[stream, user] = max(known, tick)
            self.pending.remove(tile)
            self.owner.pop(id(tile)).release(tile)
            found = arena.find(size, stream)
            if found is not None:
                return found

    def grow(self, arena: Arena, size: int, stream: int) -> tuple[Tile, int]:
        try:
            return self.after_growing(arena, arena.grow(size, stream), size, stream)
        except OutOfMemory:
            return self.when_refused(arena, size, stream)

    def after_growing(self, arena: Arena, region: Region, size: int, stream: int) -> tuple[Tile, int]:
        found = arena.hit(size, stream)
        if found is None and (arena.private or not self.may_wait):
            assert region.tail is not None
            return region.tail, region.tail.offset
        if found is None:
            found = arena.any_fit(size)
            assert found is not None
            arena.wait_for(found[0], stream)
        return found

    def when_refused(self, arena: Arena, size: int, stream: int) -> tuple[Tile, int]:
        """Step 8."""
        if not arena.private:
            found = self.reuse_waiting(arena, size, stream, 0) if self.options.wait_reuse is not None else None
            if found is not None:
                return found
            self.wait_events()
            found = arena.find(size, stream)
            if found is not None:
                return found
            try:
                return self.after_growing(arena, arena.grow(size, stream, last=True), size, stream)
            except OutOfMemory:
                pass
            self.empty_cache()
        return self.after_growing(arena, arena.grow(size, stream, last=True), size, stream)

    def record_stream(self, tile: Tile, stream: int) -> None:
        self.streams.meet(stream)
        if stream != tile.stream and stream not in tile.uses:
            tile.uses.append(stream)

    def free(self, tile: Tile) -> None:
        if not tile.uses:
            self.owner.pop(id(tile)).release(tile)
            return
        tile.events = {user: self.streams.stamp(user) for user in tile.uses}
        tile.uses = []
        self.pending.append(tile)

    def finish(self, stream: int) -> None:
        """The device has done all work of a stream."""
        self.finished[stream] = self.streams.tick

    def poll(self) -> None:
        for tile in list(self.pending):
            for user, tick in list(tile.events.items()):
                if tick <= self.finished.get(user, 0):
                    self.streams.done[user] = max(tick, self.streams.done.get(user, 0))
                    del tile.events[user]
            if not tile.events:
                self.pending.remove(tile)
                self.owner.pop(id(tile)).release(tile)

    def wait_events(self) -> None:
        for stream in self.streams.known:
            self.finished[stream] = self.streams.tick
        self.poll()

    def empty_cache(self) -> None:
        self.wait_events()
        if self.arena.chunks:
            self.streams.all_done()
            self.trim(self.arena)

    def trim(self, arena: Arena) -> None:
        for chunk in [chunk for chunk in arena.chunks if chunk.live == 0]:
            for view in chunk.views:
                region = view.region
                tile = arena.cut(region, view.offset, chunk.size, "unmapped")
                i = region.tiles.index(tile)
                if i + 1 < len(region.tiles) and region.tiles[i + 1].state == "unmapped":
                    tile.size += region.tiles.pop(i + 1).size
                if i > 0 and region.tiles[i - 1].state == "unmapped":
                    before = region.tiles.pop(i - 1)
                    tile.offset, tile.size = before.offset, before.size + tile.size
                region.views.remove(view)
            arena.chunks.remove(chunk)
            arena.reserved -= chunk.size
            self.reserved -= chunk.size
        for region in arena.regions:
            if region.tiles and region.tiles[-1].state == "unmapped":
                region.tiles.pop()
        if not arena.chunks:
            arena.regions, arena.carved = [], 0
