"""Dense placement in plain Python: the decisions that the engine must make, written for readers and not for speed.

It uses lists instead of trees, and recomputes instead of storing. Places are (region number, offset); a test compares
them with the engine's addresses. The terms are those of `src/allotment/_core/placement/dense/structures.pxd`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
PAGE = 2 * MIB
LARGE = 4 * MIB  # from here on equal sizes are kept together
PASSED_OVER = 64  # the most tiles that a search looks at before it gives up
CLOCK_STREAMS = 4  # streams of a clock, before the rest is folded
CHUNK_MOST = 256 * MIB
LOADING_GRAIN = 32
VIEW_US, CHUNK_US = 32.5, 47.0
LEFT_OVER_US = 5.0  # per MiB
MICRO = 1_000_000
SOON = 10_000  # requests: a view that is needed again within so many was removed too early
RAISED_MOST = 16  # views: a limit of so many is not raised


def up(size: int, unit: int = PAGE) -> int:
    return -(-size // unit) * unit


def down(size: int, unit: int = PAGE) -> int:
    return size // unit * unit


class OutOfMemory(Exception):
    pass


class MappingRefused(Exception):
    pass


@dataclass
class Options:
    grain: int = 96
    slack: float = 0.01
    wait_reuse: int | None = 2  # None: off
    share_streams: bool = True
    start: int = 0
    views: int = 8
    gc_threshold: float = 0.0


# --- the order between streams -------------------------------------------------------------------------------------


class Clock:
    """The last free of any byte of a free tile, by stream: {stream: tick}, and one tick for all folded streams."""

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
    """The order of work between streams.

    Stream s is ordered after a up to tick `synced[s, a]`; a has finished up to tick `done[a]`.
    Stream s is ordered after every stream up to tick `joined[s]`; `join` is that tick of the last stream that waited
    for all streams. Every stream was seen finished up to tick `past`.
    """

    def __init__(self) -> None:
        self.tick = 0
        self.synced: dict[tuple[int, int], int] = {}
        self.done: dict[int, int] = {}
        self.latest: dict[int, int] = {}  # the last tick that a clock may hold for a stream
        self.known: list[int] = []
        self.joined: dict[int, int] = {}
        self.join = 0
        self.past = 0

    def meet(self, stream: int) -> None:
        if stream not in self.known:
            self.known.append(stream)

    def stamp(self, stream: int) -> int:
        self.tick += 1
        self.latest[stream] = self.tick
        return self.tick

    def is_past(self, stream: int, other: int, tick: int) -> bool:
        known = max(self.synced.get((stream, other), 0), self.joined.get(stream, 0), self.done.get(other, 0))
        return stream == other or tick <= known

    def is_past_all(self, stream: int, tick: int) -> bool:
        return tick <= max(self.joined.get(stream, 0), self.past)

    def covers(self, clock: Clock, stream: int) -> bool:
        past = all(self.is_past(stream, other, tick) for other, tick in clock.ticks.items())
        return past and self.is_past_all(stream, clock.everyone)

    def wait_for(self, clock: Clock, stream: int) -> None:
        """Order `stream` after every free in a clock."""
        if not self.is_past_all(stream, clock.everyone):
            self.order_after_all(stream, clock.everyone)
        for other, tick in clock.ticks.items():
            if not self.is_past(stream, other, tick):
                self.order_after(stream, other)

    def order_after_all(self, stream: int, tick: int) -> None:
        """By a wait for what the last such stream waited for, and for every stream that was active since."""
        self.joined[stream] = max(self.joined.get(stream, 0), self.join)
        if tick > self.joined[stream]:
            for other in self.known:
                latest = self.latest.get(other, 0)
                if latest > self.join and not self.is_past(stream, other, latest):
                    self.order_after(stream, other)
            self.joined[stream] = self.join = self.tick

    def order_after(self, stream: int, other: int) -> None:
        self.synced[stream, other] = self.tick

    def see_done(self, stream: int, tick: int) -> None:
        self.done[stream] = max(tick, self.done.get(stream, 0))

    def is_done_with(self, stream: int, tick: int) -> bool:
        return min(tick, self.latest.get(stream, 0)) <= self.done.get(stream, 0)

    def see_past(self) -> None:
        behind = [
            self.done.get(stream, 0) for stream in self.known if self.latest.get(stream, 0) > self.done.get(stream, 0)
        ]
        self.past = max(self.past, min(behind, default=self.tick))

    def all_are_past(self, tick: int) -> bool:
        self.see_past()
        return tick <= self.past

    def is_over(self, clock: Clock) -> bool:
        if any(tick > self.done.get(stream, 0) for stream, tick in clock.ticks.items()):
            return False
        return self.all_are_past(clock.everyone)


# --- memory and addresses -------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Chunk:
    number: int
    size: int
    view_limit: int
    live: int = 0
    views: list[View] = field(default_factory=list)  # the first is its home
    dropped: int = 0  # when it last lost a view, in requests of the arena; 0: it does not count

    @property
    def last_use(self) -> int:
        return max(view.last_use for view in self.views)


@dataclass(eq=False)
class View:
    chunk: Chunk
    region: Region
    offset: int
    live: int = 0
    last_use: int = 0
    freed: int = 0  # when a block in it was last freed

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
    stream: int = 0  # used: its owner's stream
    user: Tile | None = None  # shadow: the tile it shadows
    shadows: list[Tile] = field(default_factory=list)
    uses: list[int] = field(default_factory=list)
    events: dict[int, int] = field(default_factory=dict)  # pending: user stream -> tick of its event
    work: dict[int, int] = field(default_factory=dict)  # pending: user stream -> its work before that event
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
    base: int  # relative to the first address that the arena reserved
    size: int
    tiles: list[Tile] = field(default_factory=list)  # up to `filled`
    views: list[View] = field(default_factory=list)  # by offset
    is_main: bool = False  # new memory is mapped at the end of the last main region

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
    added: int = 0  # addresses that it fills
    beyond: int = 0  # bytes created beyond the room
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
        self.carved = 0  # addresses assigned to regions
        self.freeable = False  # it has no users any more

    # --- finding ----------------------------------------------------------------------------------------------

    def free_tiles(self) -> list[Tile]:
        return [tile for region in self.regions for tile in region.tiles if tile.state == "free"]

    def hit(self, size: int, stream: int) -> tuple[Tile, int] | None:
        """A tile, and the offset in its region where the request is placed."""
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
        self.streams.wait_for(tile.clock, stream)

    # --- allocating and freeing ---------------------------------------------------------------------------------

    def cut(self, region: Region, offset: int, size: int, state: str) -> Tile:
        """Make one tile of bytes that lie inside one free tile."""
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
        """Merge a free tile with its free neighbours."""
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
        """Make the tile's bytes free in every view."""
        clock = Clock()
        for stream, tick in tile.events.items():
            clock.note(stream, tick)
        clock.note(tile.stream, self.streams.stamp(tile.stream))
        for view in tile.region.under(tile.offset, tile.size):
            part = min(tile.end, view.end) - max(tile.offset, view.offset)
            view.chunk.live -= part
            view.live -= part
            view.freed = self.streams.tick
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
        """Whether more than a quarter of the obtainable memory is reserved."""
        return self.memory.reserved > self.memory.obtainable // 4

    def limits(self, size: int) -> tuple[int, int, int]:
        """P', the room for new memory, and the most that the device or the limit leaves."""
        peak = max(self.peak, self.memory.active + size)
        slack = max(int(self.options.slack * MICRO) * peak // MICRO, min(16 * MIB, peak // 32))
        if self.loading:
            slack = max(slack, peak * 6 // 100)
        left = self.memory.obtainable - self.memory.reserved
        room = down(max(0, min(peak + slack - self.memory.reserved, left)))
        return peak, room, left

    def grow(self, size: int, stream: int, last: bool = False) -> Region:
        """Step 7: the region that has grown. Raises OutOfMemory before it changes anything."""
        peak, room, left = self.limits(size)
        if self.private:
            return self.grow_plainly(size, stream, left)
        region = self.home_region(size)
        tail = region.tail.size if region.tail else 0
        need = up(size - tail)
        pressed = self.is_pressed()
        ahead = 0 if pressed else min(room, up(max(16 * MIB, self.memory.reserved // 50)))
        in_gap, gap = self.cheapest_gap(size) if not last else (0, None)
        if gap is not None and in_gap <= room and (in_gap <= need or need > region.left):
            self.create(gap.region, max(in_gap, min(ahead, gap.size)), gap)
            return gap.region
        if need > region.left and up(size) <= room and not last:
            region, need = self.new_region(up(size), is_main=True), up(size)
        if need <= room and need <= region.left and not last:
            self.create(region, max(need, min(ahead, region.left)))
            return region
        try:
            return self.grow_by_plan(size, peak, room, left, last)
        except MappingRefused as refusal:
            if not refusal.args[0]:  # nothing was stitched
                raise
            return self.grow_by_plan(size, peak, room, left, last, stitches=False)

    def cheapest_gap(self, size: int) -> tuple[int, Tile | None]:
        """The gap that needs the least new memory to fit a request, and how much it needs."""
        best: tuple[int, Tile | None] = (0, None)
        for region in self.regions:
            around = [None, *region.tiles, None]
            for i, gap in enumerate(region.tiles):
                if gap.state != "unmapped":
                    continue
                before, behind = (
                    tile.size if tile is not None and tile.state == "free" else 0 for tile in (around[i], around[i + 2])
                )
                if before < size and behind < size and before + gap.size + behind >= size:
                    need = min(up(size - before), gap.size)
                    if best[1] is None or need < best[0]:
                        best = need, gap
        return best

    def grow_by_plan(self, size: int, peak: int, room: int, left: int, last: bool, stitches: bool = True) -> Region:
        pressed = self.is_pressed()
        plan = self.cheapest_plan(size, room, pressed, last, stitches and self.options.views > 1)
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
        """Only new memory, after a tail that `stream` may use, or in a new region."""
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
        region = region or self.new_region(need, is_main=not self.regions)
        self.create(region, need)
        return region

    # --- removing views -----------------------------------------------------------------------------------------

    def drop_old_views(self, chunk: Chunk, region: Region) -> None:
        if len(chunk.views) <= chunk.view_limit:
            return
        if chunk.dropped and self.requests - chunk.dropped < SOON and chunk.view_limit < RAISED_MOST:
            chunk.view_limit *= 2
            chunk.dropped = 0
            return
        while len(chunk.views) > chunk.view_limit:
            view = self.view_to_drop(chunk, region)
            if view is None:
                self.memory.ask_streams()
                view = self.view_to_drop(chunk, region)
            if view is None:
                return
            self.drop(view)
            chunk.dropped = max(self.requests, 1)
            self.memory.dropped += 1

    def view_to_drop(self, chunk: Chunk, region: Region) -> View | None:
        candidates = [
            view
            for view in chunk.views
            if not view.live and not view.region.is_main and view.region is not region
            and self.streams.all_are_past(view.freed)
        ]  # fmt: skip
        return min(candidates, key=lambda view: view.last_use, default=None)

    def drop(self, view: View) -> None:
        """Turn the addresses of a view into a gap."""
        region = view.region
        for tile in [tile for tile in region.tiles if tile.offset < view.end and tile.end > view.offset]:
            low, high = max(tile.offset, view.offset), min(tile.end, view.end)
            if tile.state == "free":
                self.cut(region, low, high - low, "unmapped")
            else:
                assert tile.state == "shadow" and (low, high) == (tile.offset, tile.end)
                tile.user.shadows.remove(tile)
                tile.state, tile.user = "unmapped", None
        i = 0
        while i + 1 < len(region.tiles):
            if region.tiles[i].state == region.tiles[i + 1].state == "unmapped":
                region.tiles[i].size += region.tiles.pop(i + 1).size
            else:
                i += 1
        if region.tiles[-1].state == "unmapped":
            region.tiles.pop()
        region.views.remove(view)
        view.chunk.views.remove(view)

    def is_unused(self, chunk: Chunk) -> bool:
        home = chunk.views[0]
        return chunk.live == 0 and self.streams.is_over(home.region.at(home.offset).clock)

    def trim(self, keep: int = 0) -> None:
        """Release unused chunks, the least recently used first, until at most `keep` bytes are reserved."""
        self.streams.see_past()
        for chunk in sorted(filter(self.is_unused, self.chunks), key=lambda c: (c.last_use, c.number)):
            if self.reserved <= keep:
                break
            for view in list(chunk.views):
                self.drop(view)
            self.forget(chunk)
        if not self.chunks:
            self.regions, self.carved = [], 0

    def forget(self, chunk: Chunk) -> None:
        self.chunks.remove(chunk)
        self.reserved -= chunk.size
        self.memory.reserved -= chunk.size

    def adopt(self, source: Arena) -> None:
        """Take the wholly free regions of a pool without users."""
        self.streams.see_past()
        for old in source.regions:
            if len(old.tiles) != 1 or old.tiles[0].state != "free" or not self.streams.is_over(old.tiles[0].clock):
                continue
            region = Region(len(self.regions), 0, old.size)
            self.regions.append(region)
            for view in old.views:
                source.forget(view.chunk)
                self.add_chunk(region, view.chunk.size)
            old.size, old.tiles, old.views = 0, [], []
            self.memory.adopted += 1

    def home_region(self, size: int) -> Region:
        """The region where new memory is mapped at the end."""
        main = [region for region in self.regions if region.is_main]
        return main[-1] if main else self.new_region(up(size), is_main=True)

    def new_region(self, size: int, is_main: bool = False) -> Region:
        """An empty region: one whose views are all gone, or a new one."""
        for region in self.regions:
            if not is_main and not region.is_main and not region.tiles and size <= region.left:
                return region
        total = self.memory.total
        if not self.regions or self.private:
            wanted = up(max(size, min(2 * total, max(total // 4, 16 * GIB))))
        elif is_main:
            wanted = up(max(size, 2 * total))
        else:
            wanted = up(max(8 * size, min(4 * GIB, total)))
        region = Region(len(self.regions), self.carved, wanted, is_main=is_main)
        self.carved += wanted
        self.regions.append(region)
        return region

    def chunk_most(self, new: int, left: int) -> int:
        """The largest chunk when `left` of `new` bytes are still to be created."""
        if self.is_pressed():
            return max(4 * MIB, up(self.memory.obtainable // 512))
        grain = self.options.grain
        most = max(768 * MIB // grain, max(self.memory.reserved, self.memory.active + left) // grain, 2 * new // grain)
        if self.loading and self.memory.reserved < self.memory.obtainable // 8:
            most = max(most, self.memory.reserved // LOADING_GRAIN)
        return min(CHUNK_MOST, up(most))

    def create(self, region: Region, new: int, gap: Tile | None = None) -> None:
        """New memory at the end of a region, or at the front of a gap."""
        left = new
        if new:
            self.memory.ask_device()
        while left > 0:
            most = self.chunk_most(new, left)
            size = min(left, most)
            if 0 < left - size < size // 4:
                size = up(left // 2)
            self.add_chunk(region, size, gap)
            left -= size

    def add_chunk(self, region: Region, size: int, gap: Tile | None = None) -> None:
        chunk = Chunk(self.numbered, size, self.options.views)
        self.numbered += 1
        self.chunks.append(chunk)
        self.reserved += size
        self.memory.reserved += size
        view = View(chunk, region, region.filled if gap is None else gap.offset, last_use=self.requests)
        chunk.views.append(view)
        region.views.append(view)
        region.views.sort(key=lambda one: one.offset)
        tile = Tile(region, view.offset, size, "free")
        if gap is None:
            region.tiles.append(tile)
        else:
            region.tiles.insert(region.tiles.index(gap), tile)
            gap.offset += size
            gap.size -= size
            if not gap.size:
                region.tiles.remove(gap)
            self.memory.filled += 1
        self.join(tile)

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

    def cheapest_plan(self, size: int, room: int, pressed: bool, last: bool, stitches: bool) -> Plan | None:
        whole = sorted((c for c in self.chunks if c.live == 0), key=lambda c: (-c.size, -c.number))
        partly = [(c, *self.free_ends(c)) for c in self.chunks if c.live > 0]
        tails = sorted(((tail, chunk) for chunk, _, tail in partly if tail >= PAGE), key=lambda x: (-x[0], x[1].number))
        best: Plan | None = None
        starts: list[tuple[Region | None, Chunk | None, int]] = [
            (region, None, region.tail.size if region.tail else 0) for region in self.regions
        ]
        starts.append((None, None, 0))
        if stitches:
            starts += [(None, chunk, tail) for tail, chunk in tails[:4]]
        else:
            whole = []
        for region, tail_of, have in starts:
            for with_head in (False, True) if stitches else (False,):
                plan = self.plan(size, room, pressed, last, region, tail_of, have, with_head, whole, partly)
                if plan is not None and (best is None or plan.price < best.price):
                    best = plan
        return best

    def plan(self, size, room, pressed, last, region, tail_of, have, with_head, whole, partly) -> Plan | None:
        def is_there(chunk: Chunk) -> bool:
            return chunk is tail_of or (region is not None and any(view.region is region for view in chunk.views))

        plan = Plan(region, tail_of)
        rest = size - have
        head = 0
        if with_head:
            heads = [(head, -chunk.number, chunk) for chunk, head, _ in partly if head >= PAGE and not is_there(chunk)]
            if not heads:
                return None
            head, _, plan.head_of = max(heads, key=lambda x: x[:2])
            rest -= head
        need = up(rest) if rest > 0 else 0
        stock = [chunk for chunk in whole if not is_there(chunk)]
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
        plan.added = sum(c.size for c in [tail_of, plan.head_of, *plan.whole] if c is not None) + plan.create
        if region is not None and region.filled + plan.added > region.size:
            return None
        plan.beyond = max(0, plan.create - room)
        per_mib = 1e9 if last else 1000.0 if pressed else 20.0 * self.options.grain / 24
        left_over = have + head + sum(chunk.size for chunk in plan.whole) + plan.create - size
        plan.price = pieces * VIEW_US + math.ceil(plan.create / CHUNK_MOST) * CHUNK_US
        plan.price = plan.price + plan.beyond / MIB * per_mib + left_over / MIB * LEFT_OVER_US
        return plan

    def carry_out(self, plan: Plan) -> Region:
        region = plan.region if plan.region is not None else self.new_region(plan.added)
        stitched = [chunk for chunk in (plan.tail_of, *plan.whole, plan.head_of) if chunk is not None]
        if plan.create or stitched:
            self.memory.ask_device(bool(plan.create), bool(stitched))
        self.memory.refusals.append(False)
        if plan.tail_of is not None:
            self.add_view(region, plan.tail_of)
        for chunk in plan.whole:
            self.add_view(region, chunk)
        if plan.create:
            self.create(region, plan.create)
        else:
            self.memory.refusals.pop()
        if plan.head_of is not None:
            self.add_view(region, plan.head_of)
        for chunk in stitched:
            self.drop_old_views(chunk, region)
        return region


class Memory:
    """Everything: the arenas, pending blocks, limit and device."""

    def __init__(self, total: int, limit: int | None = None, options: Options | None = None) -> None:
        self.total = total
        self.limit = limit
        self.options = options or Options()
        self.streams = Streams()
        self.reserved = self.active = self.dropped = self.filled = self.adopted = 0
        self.arena = Arena(self, private=False)
        self.private: list[Arena] = []
        self.pending: list[Tile] = []
        self.refusals: list[bool] = []  # whether the device refuses new memory, the next call last
        self.refuses_map = False  # refuse the next mapping
        self.launched: dict[int, int] = {}  # work submitted to a stream
        self.worked: dict[int, int] = {}  # the part of it that is done
        self.probes: dict[int, tuple[int, int]] = {}  # stream -> tick of the event that polls it, work before it
        self.finished: dict[int, int] = {}  # what the device would report: events up to this tick are done
        self.owner: dict[int, Arena] = {}

    @property
    def obtainable(self) -> int:
        """The most that can be reserved: what is reserved, and what the limit and the device leave."""
        most = self.total if self.limit is None else min(self.limit, self.total)
        return max(most, self.reserved)

    def ask_device(self, creates: bool = True, stitched: bool = False) -> None:
        """Create memory and map it. Raises OutOfMemory or MappingRefused if the test told the device to refuse."""
        if creates and self.refusals and self.refusals.pop():
            raise OutOfMemory
        if self.refuses_map:
            self.refuses_map = False
            raise MappingRefused(stitched)

    def pool(self) -> Arena:
        self.private.append(Arena(self, private=True))
        return self.private[-1]

    def close(self, arena: Arena) -> None:
        arena.freeable = True

    def malloc(self, asked: int, stream: int = 0, arena: Arena | None = None, capturing: bool = False) -> Tile:
        arena = arena or self.arena
        size = up(asked, 512)
        if not capturing:
            self.poll()
        self.streams.meet(stream)
        found = arena.find(size, stream)
        if found is None and not arena.private and self.options.wait_reuse is not None:
            found = self.reuse_waiting(arena, size, stream, self.options.wait_reuse)
        if found is None:
            if not arena.private:
                self.collect_garbage()
            found = self.grow(arena, size, stream, capturing)
        tile, offset = found
        used = arena.hand_out(tile.region, offset, size, stream)
        self.owner[id(used)] = arena
        return used

    def reuse_waiting(self, arena: Arena, size: int, stream: int, kept: int) -> tuple[Tile, int] | None:
        """Step 5: pending memory, the oldest free first."""
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

    def collect_garbage(self) -> None:
        over = 0 if self.limit is None else self.reserved - int(self.options.gc_threshold * self.limit)
        if self.options.gc_threshold and over > 0:
            self.arena.trim(self.arena.reserved - min(over, self.arena.reserved))

    def grow(self, arena: Arena, size: int, stream: int, capturing: bool) -> tuple[Tile, int]:
        try:
            return self.after_growing(arena, arena.grow(size, stream), size, stream)
        except OutOfMemory:
            return self.when_refused(arena, size, stream, capturing)

    def after_growing(self, arena: Arena, region: Region, size: int, stream: int) -> tuple[Tile, int]:
        found = arena.hit(size, stream)
        if found is None and arena.private:
            assert region.tail is not None
            return region.tail, region.tail.offset
        if found is None:
            found = arena.any_fit(size)
            assert found is not None
            arena.wait_for(found[0], stream)
        return found

    def when_refused(self, arena: Arena, size: int, stream: int, capturing: bool) -> tuple[Tile, int]:
        """Step 8."""
        if not arena.private:
            found = self.reuse_waiting(arena, size, stream, 0) if self.options.wait_reuse is not None else None
            if found is not None:
                return found
            self.wait_events()
            found = arena.find(size, stream)
            if found is not None:
                return found
            self.have_unused_pools()
            found = arena.find(size, stream)
            if found is not None:
                return found
            try:
                return self.after_growing(arena, arena.grow(size, stream, last=True), size, stream)
            except OutOfMemory:
                pass
            self.synchronize()
            found = arena.hit(size, stream)
            if found is not None:
                return found
            arena.trim()
        elif not capturing:
            self.empty_cache()
            found = arena.hit(size, stream)
            if found is not None:
                return found
        return self.after_growing(arena, arena.grow(size, stream, last=True), size, stream)

    def have_unused_pools(self) -> None:
        if any(pool.freeable and pool.chunks for pool in self.private):
            self.synchronize()
            for pool in self.private if self.arena.regions else []:
                if pool.freeable and pool.chunks:
                    self.arena.adopt(pool)
        self.release_unused_pools()

    def release_unused_pools(self) -> None:
        for pool in self.private:
            if pool.freeable and pool.chunks:
                self.synchronize()
                pool.trim()

    def record_stream(self, tile: Tile, stream: int) -> None:
        self.streams.meet(stream)
        if stream != tile.stream and stream not in tile.uses:
            tile.uses.append(stream)

    def free(self, tile: Tile) -> None:
        if not tile.uses:
            self.owner.pop(id(tile)).release(tile)
            return
        tile.events = {user: self.streams.stamp(user) for user in tile.uses}
        tile.work = {user: self.launched.get(user, 0) for user in tile.uses}
        tile.uses = []
        self.pending.append(tile)

    # --- the device's streams -----------------------------------------------------------------------------------

    def launch(self, stream: int) -> None:
        self.launched[stream] = self.launched.get(stream, 0) + 1

    def finish(self, stream: int) -> None:
        """The device has finished all work of a stream."""
        self.finished[stream] = self.streams.tick
        self.worked[stream] = self.launched.get(stream, 0)

    def synchronize(self) -> None:
        """Wait for every stream that may still use memory that it freed."""
        self.streams.see_past()
        for stream in self.streams.known:
            if not self.streams.is_done_with(stream, self.streams.tick):
                self.finish(stream)
                self.streams.see_done(stream, self.streams.tick)
        self.streams.see_past()

    def ask_streams(self) -> None:
        """Poll the streams that are not known to be finished."""
        for stream in self.streams.known:
            if self.streams.is_done_with(stream, self.streams.tick):
                continue
            self.look_at_probe(stream)
            if stream not in self.probes and not self.streams.is_done_with(stream, self.streams.tick):
                self.probes[stream] = max(self.streams.tick, 1), self.launched.get(stream, 0)
                self.look_at_probe(stream)

    def look_at_probe(self, stream: int) -> None:
        tick, work = self.probes.get(stream, (0, 0))
        if tick and work <= self.worked.get(stream, 0):
            self.streams.see_done(stream, tick)
            del self.probes[stream]

    def poll(self) -> None:
        for tile in list(self.pending):
            for user, tick in list(tile.events.items()):
                if tick <= self.finished.get(user, 0):
                    self.streams.see_done(user, tick)
                    del tile.events[user]
            if not tile.events:
                self.pending.remove(tile)
                self.owner.pop(id(tile)).release(tile)

    def wait_events(self) -> None:
        for tile in self.pending:
            for user, work in tile.work.items():
                self.worked[user] = max(work, self.worked.get(user, 0))
        for stream in self.streams.known:
            self.finished[stream] = self.streams.tick
        self.poll()

    def empty_cache(self) -> None:
        self.wait_events()
        if self.arena.chunks:
            self.synchronize()
            self.arena.trim()
        self.release_unused_pools()
