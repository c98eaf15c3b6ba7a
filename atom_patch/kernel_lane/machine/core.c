/* Memory, schedules, late completion and checks. Included behind core.h and the generated meanings (emit.py).
 *
 * Memory is the process's own: an address is valid when a region holds it. Every access of every lane is looked up, so
 * nothing outside a region is ever touched.
 *
 * Late completion: an operation is an Event in its wave's queue. It *samples* memory (loads) or becomes *visible*
 * (stores, atomics) at one moment and *lands* (registers or LDS written, counter decremented) at a later one. In-order
 * runs do all at once and keep only the numbers of the stores that nobody has waited for.
 *
 * One CU keeps the order in which its waves issue accesses to the same bytes (LLVM's memory model of gfx942, work-groups
 * that are not split over CUs): among the waves of a block a barrier orders them, with no wait for the stores. Nobody
 * else sees that order: a flag for another block needs the wait. */

enum { K_LOAD, K_STORE, K_ATOMIC, K_DMA, K_CACHE, K_SMEM, K_LDS, K_FLAT };
enum { A_ADD, A_UMAX, A_UMIN, A_SMAX, A_SMIN, A_AND, A_OR, A_SWAP, A_ADD_F32, A_PK_ADD_BF16 };
enum { L_READ, L_WRITE, L_ADD, L_UMAX, L_LANES };
enum { STOP_NONE, STOP_DEADLOCK, STOP_LIMIT, STOP_FAULT };
enum { R_FREED = 1, R_KERNARG = 4, R_READONLY = 8 };
/* Findings; names in machine/__init__.py, same order. */
enum { X_READ_PAST_END, X_WRITE_PAST_END, X_UNMAPPED, X_FREED, X_READ_UNWRITTEN, X_UNORDERED_WRITE, X_UNORDERED_SAME,
       X_UNORDERED_READ, X_REGISTER_EARLY, X_LDS_EARLY, X_LDS_BOUNDS, X_STALE_READ, X_BARRIER_DMA, X_FLAG_EARLY,
       X_MISALIGNED, X_BARRIER_MISSED, X_WRITE_READONLY, X_LDS_UNWRITTEN, X_LDS_UNORDERED, X_DESCRIPTOR, X_UNDEFINED, X_READ_ALLOWED, X_COUNT };

typedef struct {
    u64 lo, hi;   /* hi: end of the buffer itself */
    u64 top;      /* end of what may be read: poison from hi on */
    u32 id, flags;
    u8 *written;  /* per byte: has been written; null when not tracked */
    u64 *writer;  /* per byte: wave << 32 | store number, within this run; null when not tracked */
    u8 *sync;     /* per 4-byte word: synchronises waves (is polled or updated atomically) */
    u32 *pending; /* per 4-byte word: number of the store in flight there, late runs only */
} Region;

typedef struct {
    u32 kind, code, pc, other_code, other_pc, region, rank, other_rank, detail, same_wave;
    u64 offset, count;
} Finding;

struct Event {
    u8 kind, sampled, visible, action, returns, bytes, two, sign;
    const Ins *ins;
    Wave *w;
    u64 mask;
    u64 lowest, highest; /* of the addresses */
    u64 address[64];
    u32 second[64];
    u64 inside[4]; /* lanes per dword that are inside the buffer descriptor */
    u32 data[16][64];
    u64 loaded[4];
    int d, n;
    u32 m0, number, seq, epoch;
    u64 due, land;
};

struct Block {
    Launch *launch;
    u32 x, y, z, waves, barriers;
    u32 first;             /* id of its first wave; the others follow */
    u32 *issued;           /* per wave: stores issued before the last barrier, when races are looked for */
    u8 *lds;
    u32 lds_size;
    Wave **wave;
    u8 active;
    u32 *dma, *write;      /* per LDS word: number of the DMA or ds_write in flight */
    u64 *lds_writer;       /* per LDS word: wave << 32 | barrier epoch of the last write */
};

struct Launch {
    const Ins *ins;
    u32 count;
    u32 grid[3], threads, lds, kernarg_bytes;
    u64 kernarg;
    u32 rank, code, user_sgprs, group_id, waves_per_block;
    u32 next, live; /* blocks not started, blocks running */
    u32 order;      /* position in the rank's stream */
};

typedef struct { u64 to, from, bytes; u32 rank, order; } HostWrite;

typedef struct {
    u32 schedule;      /* 0 in order, 1 random, 2 publisher frozen */
    u32 late;          /* 0 in order; else late completion */
    u32 model;         /* 0 FIFO, 1 FIFO + write-back drains the block, 2.. LDS-DMA out of order */
    u32 quantum, checks, resident;
    u64 seed, limit, freeze;
    double sample_early, visible_now, land_early, store_mean;
    u32 flags_now, stall, lds_poison, register_poison;
    double slow;
} Options;

struct Machine {
    Region *region;
    u32 regions;
    Launch *launch;
    u32 launches;
    HostWrite *host;
    u32 hosts;
    Options o;
    Finding *found;
    u32 found_count, found_limit, found_lost;
    u64 steps, round, random;
    u32 stop, numbers, waves, stop_pc, stop_rank, stop_code;
    Region *last;
    Event **live; /* number -> store or DMA in flight */
    u32 live_size;
    u64 *sync_key;
    u32 *sync_clock, sync_count, sync_size;
    Block **block;
    u32 blocks, block_size;
    Wave *pool[8192];
    u32 pooled;
    u64 vm_ops, barriers, atomics;
    u64 *opcode_count;
};

enum { C_INIT = 1, C_RACES = 2, C_LDS = 4, C_DISCOVER = 8, C_COUNT = 16 };

static u64 draw(Machine *m) {
    u64 z = (m->random += 0x9E3779B97F4A7C15ull);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}
static double uniform(Machine *m) { return (double)(draw(m) >> 11) * 0x1p-53; }
static u64 geometric(Machine *m, double mean) {
    double u = uniform(m);
    return mean <= 1 ? 1 : 1 + (u64)(log(1 - u) / log(1 - 1 / mean));
}

static void report(Machine *m, Wave *w, u32 kind, u32 pc, u32 other_pc, u32 other_code, u32 other_rank, u32 region, u64 offset,
                   u32 detail, u32 same) {
    Launch *l = w->block->launch;
    for (u32 k = 0; k < m->found_count; k++) {
        Finding *f = &m->found[k];
        if (f->kind == kind && f->pc == pc && f->other_pc == other_pc && f->region == region && f->code == l->code && f->same_wave == same) {
            f->count++;
            if (kind == X_READ_ALLOWED && offset > f->offset) f->offset = offset;
            return;
        }
    }
    if (m->found_count == m->found_limit) { m->found_lost++; return; }
    m->found[m->found_count++] = (Finding){kind, l->code, pc, other_code, other_pc, region, l->rank, other_rank, detail, same, offset, 1};
}
static void halt(Machine *m, Wave *w, u32 why, u32 pc) {
    if (m->stop) return;
    m->stop = why;
    m->stop_pc = pc;
    m->stop_rank = w->block->launch->rank;
    m->stop_code = w->block->launch->code;
}
static int aligned(Machine *m, Wave *w, const Ins *i, u64 a, u32 n) {
    if (!(a & (n - 1))) return 1;
    report(m, w, X_MISALIGNED, i->pc, 0, 0, 0, ~0u, a, n, 0);
    halt(m, w, STOP_FAULT, i->pc);
    return 0;
}

/* ---- memory --------------------------------------------------------------------------------------------------- */
static Region *find(Machine *m, u64 a) {
    Region *r = m->last;
    if (r && a >= r->lo && a < r->hi) return r;
    u32 lo = 0, hi = m->regions;
    while (lo < hi) {
        u32 mid = (lo + hi) / 2;
        if (m->region[mid].lo <= a) lo = mid + 1;
        else hi = mid;
    }
    if (!lo) return 0;
    return m->last = &m->region[lo - 1];
}
/* The region that holds all of [a, a+n), or null after a finding. A read past the end, as far as the buffer's owner
 * allows it, reads poison; anything else outside stops the run. */
static Region *check(Machine *m, Wave *w, const Ins *i, u64 a, u32 n, int write) {
    Region *r = find(m, a);
    if (r && a + n <= r->hi && !(r->flags & R_FREED) && !(write && r->flags & (R_KERNARG | R_READONLY))) return r;
    u32 id = r ? r->id : ~0u;
    u64 past = r ? a + n - r->hi : a;
    if (r && a + n <= r->hi) {
        report(m, w, r->flags & R_FREED ? X_FREED : X_WRITE_READONLY, i->pc, 0, 0, 0, id, a - r->lo, 0, 0);
        halt(m, w, STOP_FAULT, i->pc);
    } else if (r && !write && a + n <= r->top) {
        report(m, w, X_READ_ALLOWED, i->pc, 0, 0, 0, id, past, 0, 0);
    } else if (r && past <= 256 + n) {
        report(m, w, write ? X_WRITE_PAST_END : X_READ_PAST_END, i->pc, 0, 0, 0, id, past, 0, 0);
        halt(m, w, STOP_FAULT, i->pc);
    } else {
        report(m, w, X_UNMAPPED, i->pc, 0, 0, 0, id, r ? a - r->lo : a, write, 0);
        halt(m, w, STOP_FAULT, i->pc);
    }
    return 0;
}

static u32 *clock_of(Machine *m, u64 word, int make) {
    if (!m->sync_size) return 0;
    u32 k = (u32)((word >> 2) * 2654435761u) & (m->sync_size - 1);
    while (m->sync_key[k] && m->sync_key[k] != word) k = (k + 1) & (m->sync_size - 1);
    if (!m->sync_key[k]) {
        if (!make || m->sync_count * 2 > m->sync_size) return 0;
        m->sync_key[k] = word;
        m->sync_count++;
    }
    return m->sync_clock + (u64)k * m->waves;
}
static void join(u32 *to, const u32 *from, u32 n) {
    for (u32 k = 0; k < n; k++)
        if (from[k] > to[k]) to[k] = from[k];
}
/* What others may rely on after synchronising with this wave: of its own stores, only those it has waited for. */
static void release(Machine *m, Wave *w, u32 *to) {
    u32 own = to[w->id];
    join(to, w->clock, m->waves);
    to[w->id] = own > w->waited_seq ? own : w->waited_seq;
}
/* Whether the wave may rely on that store: it has been waited for, or the wave's own CU keeps it in order. Scalar loads
 * go another way than stores. */
static int ordered(Wave *w, u32 who, u32 seq, int scalar) {
    Block *b = w->block;
    return w->clock[who] >= seq || (!scalar && who - b->first < b->waves && b->issued[who - b->first] >= seq);
}
static int is_sync(Region *r, u64 a) { return r->sync && r->sync[(a - r->lo) >> 2]; }

static void note_read(Machine *m, Wave *w, const Ins *i, Region *r, u64 a, u32 n, int scalar) {
    u64 at = a - r->lo;
    if (r->written)
        for (u32 k = 0; k < n; k++)
            if (!r->written[at + k]) {
                report(m, w, X_READ_UNWRITTEN, i->pc, 0, 0, 0, r->id, at + k, 0, 0);
                break;
            }
    if (!r->writer) return;
    if (is_sync(r, a)) {
        u32 *c = clock_of(m, a & ~3ull, 0);
        if (c) join(w->clock, c, m->waves);
        return;
    }
    for (u32 k = 0; k < n; k++) {
        u64 last = r->writer[at + k];
        if (!last) continue;
        u32 who = (u32)(last >> 32) - 1, seq = (u32)last;
        if (who != w->id && !ordered(w, who, seq, scalar)) {
            report(m, w, X_UNORDERED_READ, i->pc, 0, who, 0, r->id, at + k, (u32)last, 0);
            break;
        }
    }
}
static void note_write(Machine *m, Wave *w, const Ins *i, Region *r, u64 a, u32 n, const u8 *value, int atomic) {
    u64 at = a - r->lo;
    if (r->written) memset(r->written + at, 1, n);
    if (!r->writer) return;
    if (is_sync(r, a)) {
        u32 *c = clock_of(m, a & ~3ull, 1);
        if (c) {
            release(m, w, c);
            if (atomic) join(w->clock, c, m->waves);
        }
    }
    for (u32 k = 0; k < n; k++) {
        u64 last = r->writer[at + k];
        u32 who = (u32)(last >> 32) - 1, seq = (u32)last;
        if (last && who != w->id && !ordered(w, who, seq, 0) && !atomic && !is_sync(r, a)) {
            int same = value && *(u8 *)(a + k) == value[k];
            report(m, w, same ? X_UNORDERED_SAME : X_UNORDERED_WRITE, i->pc, 0, who, 0, r->id, at + k, (u32)last, 0);
            k |= 3;
            continue;
        }
    }
    for (u32 k = 0; k < n; k++) r->writer[at + k] = (u64)(w->id + 1) << 32 | w->store_seq;
}
static void discover(Machine *m, Region *r, u64 a, u32 n) {
    if (m->o.checks & C_DISCOVER && r->sync)
        for (u64 k = (a - r->lo) >> 2; k <= (a - r->lo + n - 1) >> 2; k++) r->sync[k] = 1;
}

/* Reads n bytes (1, 2 or 4) for one lane. */
static u32 load_bytes(Machine *m, Wave *w, const Ins *i, u64 a, u32 n, int scalar) {
    Region *r = check(m, w, i, a, n, 0);
    if (!r) return 0xA5A5A5A5;
    if ((i->flags & (F_SC0 | F_SC1)) == (F_SC0 | F_SC1)) discover(m, r, a, n);
    if (r->written || r->writer) note_read(m, w, i, r, a, n, scalar);
    u32 x = 0;
    memcpy(&x, (void *)a, n);
    return x;
}
static void store_bytes(Machine *m, Wave *w, const Ins *i, u64 a, u32 x, u32 n) {
    Region *r = check(m, w, i, a, n, 1);
    if (!r) return;
    if (r->written || r->writer) note_write(m, w, i, r, a, n, (u8 *)&x, 0);
    memcpy((void *)a, &x, n);
}

static float bf16_value(u32 x) { return as_f(x << 16); }
static u64 atomic_result(int action, u64 old, u64 x, int bytes) {
    u32 o = (u32)old, v = (u32)x;
    switch (action) {
    case A_ADD: return bytes == 8 ? old + x : (u32)(o + v);
    case A_UMAX: return o > v ? o : v;
    case A_UMIN: return o < v ? o : v;
    case A_SMAX: return (i32)o > (i32)v ? o : v;
    case A_SMIN: return (i32)o < (i32)v ? o : v;
    case A_AND: return o & v;
    case A_OR: return o | v;
    case A_SWAP: return bytes == 8 ? x : v;
    case A_ADD_F32: return from_f(as_f(o) + as_f(v));
    default: return to_bf16(bf16_value(o & 0xFFFF) + bf16_value(v & 0xFFFF)) | to_bf16(bf16_value(o >> 16) + bf16_value(v >> 16)) << 16;
    }
}

/* ---- events --------------------------------------------------------------------------------------------------- */
static u32 part_bytes(const Event *e) { return e->bytes < 4 ? e->bytes : 4; }
static int parts(const Event *e) { return e->bytes < 4 ? 1 : e->bytes / 4; }
static int is_load(const Event *e) { return e->kind == K_LOAD || e->kind == K_DMA; }
static int is_store(const Event *e) { return e->kind == K_STORE || e->kind == K_ATOMIC; }

static int overlap(const Event *a, const Event *b) {
    if (a->lowest >= b->highest + b->bytes || b->lowest >= a->highest + a->bytes) return 0;
    for (int l = 0; l < 64; l++) {
        if (!(a->mask >> l & 1)) continue;
        for (int k = 0; k < 64; k++)
            if (b->mask >> k & 1 && a->address[l] < b->address[k] + b->bytes && b->address[k] < a->address[l] + a->bytes) return 1;
    }
    return 0;
}
static void sample(Event *e);
static void make_visible(Event *e);

/* Operations of one block on the same bytes keep their order. */
static void settle_older(Event *e) {
    Block *b = e->w->block;
    for (u32 n = 0; n < b->waves; n++)
        for (int k = 0; k < b->wave[n]->vm_count; k++) {
            Event *q = b->wave[n]->vm[k];
            if (q->number >= e->number) break;
            if (is_load(q) ? q->sampled || !is_store(e) : !is_store(q) || q->visible) continue;
            if (!overlap(q, e)) continue;
            if (is_load(q)) sample(q);
            else make_visible(q);
        }
}
static void stale_check(Event *e) {
    Machine *m = e->w->m;
    for (int l = 0; l < 64; l++) {
        if (!(e->mask >> l & 1)) continue;
        Region *r = find(m, e->address[l]);
        if (!r || !r->pending || e->address[l] + e->bytes > r->hi) continue;
        for (u64 k = (e->address[l] - r->lo) >> 2; k <= (e->address[l] - r->lo + e->bytes - 1) >> 2; k++) {
            u32 n = r->pending[k];
            Event *q = n ? m->live[n] : 0;
            if (q && q->w->block != e->w->block && !is_sync(r, e->address[l]))
                report(m, e->w, X_STALE_READ, e->ins->pc, q->ins->pc, q->w->block->launch->code, q->w->block->launch->rank, r->id, k * 4, 0, 0);
        }
    }
}
static void sample(Event *e) {
    if (e->sampled) return;
    Wave *w = e->w;
    Machine *m = w->m;
    if (m->o.late) {
        settle_older(e);
        stale_check(e);
    }
    u32 n = part_bytes(e);
    for (int k = 0; k < parts(e); k++)
        for (int l = 0; l < 64; l++) {
            u32 x = 0;
            if (e->mask >> l & e->inside[k] >> l & 1) x = load_bytes(m, w, e->ins, e->address[l] + 4 * k, n, 0);
            e->data[k][l] = e->sign ? (n == 1 ? (u32)(i32)(i8)x : (u32)(i32)(i16)x) : x;
        }
    e->sampled = 1;
}
static void unpend(Event *e) {
    Machine *m = e->w->m;
    for (int l = 0; l < 64; l++) {
        if (!(e->mask >> l & 1)) continue;
        Region *r = find(m, e->address[l]);
        if (!r || !r->pending || e->address[l] + e->bytes > r->hi) continue;
        for (u64 k = (e->address[l] - r->lo) >> 2; k <= (e->address[l] - r->lo + e->bytes - 1) >> 2; k++)
            if (r->pending[k] == e->number) r->pending[k] = 0;
    }
    m->live[e->number] = 0;
}
static void make_visible(Event *e) {
    if (e->visible) return;
    Wave *w = e->w;
    Machine *m = w->m;
    if (m->o.late) settle_older(e);
    if (e->kind == K_STORE) {
        u32 n = part_bytes(e);
        for (int l = 0; l < 64; l++) /* a later lane wins where lanes meet */
            if (e->mask >> l & 1)
                for (int k = 0; k < parts(e); k++)
                    if (e->inside[k] >> l & 1) store_bytes(m, w, e->ins, e->address[l] + 4 * k, e->data[k][l], n);
    } else {
        m->atomics++;
        for (int l = 0; l < 64; l++) {
            if (!(e->mask >> l & 1)) continue;
            if (!aligned(m, w, e->ins, e->address[l], e->bytes)) continue;
            Region *r = check(m, w, e->ins, e->address[l], e->bytes, 1);
            u64 old = 0, x = e->data[0][l] | (e->bytes == 8 ? (u64)e->data[1][l] << 32 : 0);
            if (!r) continue;
            discover(m, r, e->address[l], e->bytes);
            memcpy(&old, (void *)e->address[l], e->bytes);
            if (r->written || r->writer) {
                if (r->writer && is_sync(r, e->address[l])) note_read(m, w, e->ins, r, e->address[l], e->bytes, 0);
                note_write(m, w, e->ins, r, e->address[l], e->bytes, 0, 1);
            }
            u64 fresh = atomic_result(e->action, old, x, e->bytes);
            memcpy((void *)e->address[l], &fresh, e->bytes);
            e->data[0][l] = (u32)old;
            e->data[1][l] = (u32)(old >> 32);
        }
    }
    e->visible = 1;
    if (m->o.late) unpend(e);
}
static void drop_pending(Wave *w, Event *e) {
    if (e->d < 0 || !w->m->o.late) return;
    for (int k = 0; k < e->n; k++) {
        u64 left = 0;
        int r = e->d - 256 + k;
        for (int q = 0; q < w->vm_count; q++)
            if (w->vm[q] && w->vm[q] != e && w->vm[q]->d >= 0 && r + 256 >= w->vm[q]->d && r + 256 < w->vm[q]->d + w->vm[q]->n) left |= w->vm[q]->mask;
        for (int q = 0; q < w->lg_count; q++)
            if (w->lg[q] != e && w->lg[q]->kind == K_LDS && w->lg[q]->d >= 0 && r + 256 >= w->lg[q]->d && r + 256 < w->lg[q]->d + w->lg[q]->n)
                left |= w->lg[q]->mask;
        w->pending[r] = left;
    }
}
static void write_back(Wave *w, Event *e) {
    for (int k = 0; k < e->n; k++) put_masked(w, e->d + k, e->data[k], e->mask);
    drop_pending(w, e);
}
static int lds_range(Machine *m, Wave *w, const Ins *i, u64 a, u32 n) {
    if (a + n <= w->block->lds_size) return 1;
    report(m, w, X_LDS_BOUNDS, i->pc, 0, 0, 0, ~0u, a, w->block->lds_size, 0);
    if (a + n > LDS_BYTES) halt(m, w, STOP_FAULT, i->pc);
    return 0;
}
static void land_vm(Event *e) {
    Wave *w = e->w;
    Machine *m = w->m;
    if (is_load(e)) {
        sample(e);
        if (e->kind == K_LOAD) write_back(w, e);
        else {
            for (int l = 0; l < 64; l++)
                if (e->mask >> l & 1) {
                    u32 a = e->m0 + (u32)l * e->bytes;
                    if (!lds_range(m, w, e->ins, a, e->bytes)) continue;
                    for (int k = 0; k < parts(e); k++) memcpy(w->block->lds + a + 4 * k, &e->data[k][l], 4);
                    if (w->block->dma)
                        for (int k = 0; k < parts(e); k++)
                            if (w->block->dma[a / 4 + k] == e->number) w->block->dma[a / 4 + k] = 0;
                    if (w->block->lds_writer)
                        for (int k = 0; k < parts(e); k++) w->block->lds_writer[a / 4 + k] = (u64)(w->index + 1) << 32 | w->block->barriers;
                }
            if (m->o.late) m->live[e->number] = 0;
        }
    } else if (e->kind == K_CACHE) {
        if (m->o.model == 1 && e->action)
            for (u32 k = 0; k < w->block->waves; k++) {
                Wave *p = w->block->wave[k];
                for (int q = 0; p && q < p->vm_count; q++)
                    if (p->vm[q] && is_store(p->vm[q]) && !p->vm[q]->visible && p->vm[q]->number < e->number) make_visible(p->vm[q]);
            }
    } else if (is_store(e)) {
        make_visible(e);
        if (e->returns) write_back(w, e);
    }
}

/* ---- LDS ------------------------------------------------------------------------------------------------------ */
static void lds_conflict(Event *e, u32 word, int write) {
    Wave *w = e->w;
    Machine *m = w->m;
    Block *b = w->block;
    u32 n = b->dma[word];
    Event *q = n ? m->live[n] : 0;
    if (q && q != e) report(m, w, X_LDS_EARLY, e->ins->pc, q->ins->pc, q->w->block->launch->code, 0, ~0u, word * 4, write, q->w == w);
    n = b->write[word];
    q = n ? m->live[n] : 0;
    if (q && q != e && q->w != w) report(m, w, X_LDS_EARLY, e->ins->pc, q->ins->pc, q->w->block->launch->code, 0, ~0u, word * 4, write, 0);
}
/* `same`: a write of what the word holds already, which no other wave can tell from none. */
static void lds_order(Event *e, u32 word, int write, int whole, int same) {
    Block *b = e->w->block;
    u64 last = b->lds_writer[word];
    if (last && same) return;
    if (!write && !last) report(e->w->m, e->w, X_LDS_UNWRITTEN, e->ins->pc, 0, 0, 0, ~0u, word * 4, 0, 0);
    if (!whole) { /* bytes of one word may be different waves': only that it was written is kept */
        if (write && !last) b->lds_writer[word] = (u64)(e->w->index + 1) << 32 | ~0u;
        return;
    }
    if (last && (u32)(last >> 32) - 1 != e->w->index && (u32)last == b->barriers)
        report(e->w->m, e->w, X_LDS_UNORDERED, e->ins->pc, 0, 0, 0, ~0u, word * 4, write, 0);
    if (write) b->lds_writer[word] = (u64)(e->w->index + 1) << 32 | b->barriers;
}
static void do_lds(Event *e) {
    Wave *w = e->w;
    Machine *m = w->m;
    u8 *lds = w->block->lds;
    if (e->action == L_LANES) { write_back(w, e); return; }
    int words = e->bytes < 4 ? 1 : e->bytes / 4;
    u32 n = e->bytes < 4 ? e->bytes : 4;
    for (int half = 0; half <= e->two; half++)
        for (int l = 0; l < 64; l++) {
            if (!(e->mask >> l & 1)) continue;
            u64 a = half ? e->second[l] : e->address[l];
            int inside = lds_range(m, w, e->ins, a, e->bytes);
            for (int k = 0; k < words; k++) {
                u32 *x = &e->data[half * words + k][l];
                if (!inside) { if (e->action != L_WRITE) *x = 0; continue; }
                if (e->action != L_READ && e->action != L_WRITE && !aligned(m, w, e->ins, a, 4)) continue;
                if (w->block->dma) lds_conflict(e, (u32)(a / 4 + k), e->action != L_READ);
                if (w->block->lds_writer)
                    lds_order(e, (u32)(a / 4 + k), e->action != L_READ, n == 4, e->action == L_WRITE && !memcmp(lds + a + 4 * k, x, n));
                if (e->action == L_READ) {
                    u32 v = 0;
                    memcpy(&v, lds + a + 4 * k, n);
                    *x = e->sign ? (n == 1 ? (u32)(i32)(i8)v : (u32)(i32)(i16)v) : v;
                } else if (e->action == L_WRITE) memcpy(lds + a + 4 * k, x, n);
                else {
                    u32 old, v = *x;
                    memcpy(&old, lds + a, 4);
                    u32 fresh = e->action == L_ADD ? old + v : old > v ? old : v;
                    memcpy(lds + a, &fresh, 4);
                    *x = old;
                }
                if (w->block->write && w->block->write[a / 4 + k] == e->number) w->block->write[a / 4 + k] = 0;
            }
        }
    if (e->d >= 0) write_back(w, e);
    if (m->o.late) m->live[e->number] = 0;
}
static void do_smem(Event *e) {
    Wave *w = e->w;
    for (int k = 0; k < e->n; k++) {
        if (!e->sampled) e->data[k][0] = load_bytes(w->m, w, e->ins, e->address[0] + 4 * k, 4, 1);
        w->s[e->d + k] = e->data[k][0];
        w->pending_s[e->d + k] = 0;
    }
}
static void land_lg(Event *e) {
    if (e->kind == K_SMEM) do_smem(e);
    else if (e->kind == K_LDS) do_lds(e);
}

/* ---- queues --------------------------------------------------------------------------------------------------- */
static u32 number(Machine *m, Event *e) {
    if (++m->numbers >= m->live_size) {
        m->live = realloc(m->live, sizeof(Event *) * 2 * m->live_size);
        memset(m->live + m->live_size, 0, sizeof(Event *) * m->live_size);
        m->live_size *= 2;
    }
    m->live[m->numbers] = e;
    return m->numbers;
}
static int pick_vm(Wave *w) {
    Machine *m = w->m;
    if (m->o.model < 2) return 0;
    int dma[64], n = 0, first = -1;
    for (int k = 0; k < w->vm_count; k++) {
        if (w->vm[k]->kind == K_DMA) dma[n++] = k;
        else if (first < 0) first = k;
    }
    if (!n) return 0;
    int any = dma[draw(m) % n];
    if (m->o.model == 3) return first >= 0 ? first : any;       /* DMA last */
    if (m->o.model == 4) return any;                            /* DMA first */
    if (m->o.model == 5) return w->vm[0]->kind == K_DMA ? any : 0; /* DMA among themselves */
    return first >= 0 && draw(m) & 1 ? first : any;
}
static void remove_vm(Wave *w, int k) {
    Event *e = w->vm[k];
    for (int q = k; q + 1 < w->vm_count; q++) w->vm[q] = w->vm[q + 1];
    w->vm_count--;
    if (is_store(e) && e->seq > w->waited_seq) w->waited_seq = e->seq;
    free(e);
}
static void force_vm(Wave *w, int n) {
    if (!w->m->o.late) {
        int drop = w->vm_count - n;
        if (drop <= 0) return;
        for (int k = 0; k < drop; k++)
            if (w->vm_store[k] > w->waited_seq) w->waited_seq = w->vm_store[k];
        memmove(w->vm_store, w->vm_store + drop, sizeof(u32) * n);
        w->vm_count = n;
        return;
    }
    while (w->vm_count > n) {
        int k = pick_vm(w);
        land_vm(w->vm[k]);
        remove_vm(w, k);
    }
}
static void force_lg(Wave *w, int n) {
    while (w->lg_count > n) {
        int k = 0;
        if (n) { /* scalar loads may overtake; everything else keeps its order */
            int c[16], cn = 0, other = -1;
            for (int q = 0; q < w->lg_count; q++) {
                if (w->lg[q]->kind == K_SMEM) c[cn++] = q;
                else if (other < 0) other = q;
            }
            if (cn) {
                if (other >= 0) c[cn++] = other;
                k = c[draw(w->m) % cn];
            }
        }
        Event *e = w->lg[k];
        land_lg(e);
        for (int q = k; q + 1 < w->lg_count; q++) w->lg[q] = w->lg[q + 1];
        w->lg_count--;
        free(e);
    }
}
static void mark_pending(Wave *w, Event *e) {
    if (e->d >= 256)
        for (int k = 0; k < e->n; k++) w->pending[e->d - 256 + k] |= e->mask;
}
static int on_flag(Machine *m, Event *e) {
    for (int l = 0; l < 64; l++)
        if (e->mask >> l & 1) {
            Region *r = find(m, e->address[l]);
            return r && e->address[l] < r->hi && is_sync(r, e->address[l]);
        }
    return 0;
}
static void flag_early(Machine *m, Event *e) {
    Block *b = e->w->block;
    for (u32 k = 0; k < b->waves; k++) {
        Wave *p = b->wave[k];
        for (int q = 0; p && q < p->vm_count; q++) {
            Event *s = p->vm[q];
            if (s && s != e && is_store(s) && !s->visible && s->mask && !on_flag(m, s)) {
                Region *r = find(m, s->address[lowest_bit(s->mask)]);
                report(m, e->w, X_FLAG_EARLY, e->ins->pc, s->ins->pc, b->launch->code, b->launch->rank, r ? r->id : ~0u, 0, 0, p == e->w);
            }
        }
    }
}
static void push_vm(Event *e) {
    Wave *w = e->w;
    Machine *m = w->m;
    m->vm_ops++;
    if (is_store(e)) e->seq = ++w->store_seq;
    if (!m->o.late) {
        if (w->vm_count == 64) force_vm(w, 63);
        w->vm_store[w->vm_count++] = is_store(e) ? w->store_seq : 0;
        land_vm(e);
        return;
    }
    if (w->vm_count == 63) force_vm(w, 62);
    Event *k = malloc(sizeof *k);
    *k = *e;
    e = k;
    e->number = number(m, e);
    e->lowest = ~0ull;
    for (int l = 0; l < 64; l++)
        if (e->mask >> l & 1) {
            if (e->address[l] < e->lowest) e->lowest = e->address[l];
            if (e->address[l] > e->highest) e->highest = e->address[l];
        }
    w->vm[w->vm_count++] = e;
    mark_pending(w, e);
    e->due = e->land = ~0ull;
    if (is_load(e)) {
        if (e->kind == K_DMA)
            for (int l = 0; l < 64; l++)
                if (e->mask >> l & 1)
                    for (int p = 0; p < parts(e); p++) {
                        u32 word = (e->m0 + (u32)l * e->bytes) / 4 + p;
                        if (word < LDS_BYTES / 4) w->block->dma[word] = e->number;
                    }
        if (uniform(m) < m->o.sample_early) sample(e);
        if (m->o.land_early > 0) {
            if (!e->sampled) e->due = m->round + geometric(m, 2.5);
            e->land = m->round + geometric(m, 1 / m->o.land_early);
        }
    } else if (is_store(e)) {
        for (int l = 0; l < 64; l++) {
            if (!(e->mask >> l & 1)) continue;
            Region *r = find(m, e->address[l]);
            if (!r || !r->pending || e->address[l] + e->bytes > r->hi) continue;
            for (u64 p = (e->address[l] - r->lo) >> 2; p <= (e->address[l] - r->lo + e->bytes - 1) >> 2; p++) r->pending[p] = e->number;
        }
        int flag = on_flag(m, e);
        if (flag) flag_early(m, e);
        if ((flag && m->o.flags_now) || (m->o.slow > 0 && !w->slow) || uniform(m) < m->o.visible_now) make_visible(e);
        else e->due = m->round + (m->o.slow > 0 ? (u64)m->o.store_mean : geometric(m, m->o.store_mean));
        if (m->o.land_early > 0) e->land = m->round + geometric(m, 1 / m->o.land_early);
    } else if (m->o.land_early > 0) e->land = m->round;
}
static void push_lg(Event *e) {
    Wave *w = e->w;
    Machine *m = w->m;
    if (!m->o.late) { land_lg(e); return; }
    if (w->lg_count == 15) force_lg(w, 14);
    Event *k = malloc(sizeof *k);
    *k = *e;
    e = k;
    e->number = number(m, e);
    w->lg[w->lg_count++] = e;
    e->land = m->o.land_early > 0 ? m->round + geometric(m, 2.5) : ~0ull;
    if (e->kind == K_LDS) {
        mark_pending(w, e);
        if (e->action == L_WRITE || e->action == L_ADD || e->action == L_UMAX)
            for (int half = 0; half <= e->two; half++)
                for (int l = 0; l < 64; l++)
                    if (e->mask >> l & 1)
                        for (int p = 0; p < (e->bytes < 4 ? 1 : e->bytes / 4); p++) {
                            u64 word = (half ? e->second[l] : e->address[l]) / 4 + p;
                            if (word < LDS_BYTES / 4) w->block->write[word] = e->number;
                        }
    } else if (e->kind == K_SMEM) {
        for (int p = 0; p < e->n; p++) w->pending_s[e->d + p] = 1;
        if (uniform(m) < m->o.sample_early) {
            for (int p = 0; p < e->n; p++) e->data[p][0] = load_bytes(m, w, e->ins, e->address[0] + 4 * p, 4, 1);
            e->sampled = 1;
        }
    }
}
/* What happens by itself as time passes. */
static void tick(Wave *w) {
    Machine *m = w->m;
    for (int k = 0; k < w->vm_count; k++)
        if (w->vm[k]->due <= m->round) {
            Event *e = w->vm[k];
            e->due = ~0ull;
            if (is_load(e)) sample(e);
            else make_visible(e);
        }
    while (w->vm_count) {
        int k = pick_vm(w);
        Event *e = w->vm[k];
        if (e->land > m->round || (is_store(e) && !e->visible)) break;
        land_vm(e);
        remove_vm(w, k);
    }
    while (w->lg_count && w->lg[0]->land <= m->round && w->lg[0]->kind != K_SMEM) {
        Event *e = w->lg[0];
        land_lg(e);
        for (int q = 0; q + 1 < w->lg_count; q++) w->lg[q] = w->lg[q + 1];
        w->lg_count--;
        free(e);
    }
}

/* ---- memory instructions (their functions are listed in lower.py) ----------------------------------------------- */
static void begin(Event *e, Wave *w, const Ins *i, int kind, int bytes) {
    memset(e, 0, offsetof(Event, address));
    e->kind = (u8)kind;
    e->bytes = (u8)bytes;
    e->ins = i;
    e->w = w;
    e->mask = exec_of(w);
    e->d = -1;
    e->n = 0;
    e->seq = 0;
    e->number = 0;
    for (int k = 0; k < 4; k++) e->inside[k] = ~0ull;
}
static void take_data(Event *e, int code) {
    for (int k = 0; k < (e->bytes < 4 ? 1 : e->bytes / 4); k++) memcpy(e->data[k], reg(e->w, code + k), 256);
}
static void m_smem(Wave *w, const Ins *i) {
    Event e;
    begin(&e, w, i, K_SMEM, 4);
    e.n = i->words;
    e.d = i->d;
    e.address[0] = get_s64(w, i, 0) + (i64)i->offset;
    if (aligned(w->m, w, i, e.address[0], 4)) push_lg(&e);
}
static int buffer_addresses(Event *e, Wave *w, const Ins *i) {
    int rs = i->s[2];
    u64 base = w->s[rs] | (u64)(w->s[rs + 1] & 0xFFFF) << 32;
    u64 records = w->s[rs + 2], scalar = scalar_value(w, i->s[3], i->literal);
    const u32 *v = i->s[0] >= 256 ? reg(w, i->s[0]) : 0;
    /* Word 1: a stride or swizzle would change the addressing. Word 3: so would an added lane number, another type or
       bits that gfx950 does not define; data format 0 says that there is no buffer. */
    u32 word3 = w->s[rs + 3];
    if (w->s[rs + 1] >> 16 || word3 >> 19 || !(word3 >> 15 & 15)) {
        report(w->m, w, X_DESCRIPTOR, i->pc, 0, 0, 0, ~0u, (u64)(w->s[rs + 1] >> 16) << 32 | word3, 0, 0);
        halt(w->m, w, STOP_FAULT, i->pc);
        return 0;
    }
    for (int l = 0; l < 64; l++) {
        u64 offset = (u64)(u32)i->offset + (v ? v[l] : 0);
        e->address[l] = base + offset + scalar;
        for (int k = 0; k < parts(e); k++)
            if (offset + scalar + 4 * k + part_bytes(e) > records) e->inside[k] &= ~(1ull << l);
    }
    return 1;
}
static void m_buffer_load(Wave *w, const Ins *i) {
    Event e;
    begin(&e, w, i, i->flags & F_LDS ? K_DMA : K_LOAD, i->words);
    e.sign = (i->flags & F_SIGNED) != 0;
    if (!buffer_addresses(&e, w, i)) return;
    if (e.kind == K_DMA) {
        e.m0 = w->s[M0];
        if (!aligned(w->m, w, i, e.m0, 4)) return;
    } else { e.d = i->d; e.n = parts(&e); }
    push_vm(&e);
}
static void m_buffer_store(Wave *w, const Ins *i) {
    Event e;
    begin(&e, w, i, K_STORE, i->words);
    if (!buffer_addresses(&e, w, i)) return;
    take_data(&e, i->s[1]);
    push_vm(&e);
}
static void m_cache(Wave *w, const Ins *i) {
    Event e;
    if (!i->imm) return; /* an invalidate: there is no cache here */
    begin(&e, w, i, K_CACHE, 0);
    e.action = 1;
    e.mask = 0;
    push_vm(&e);
}
static void flat_addresses(Event *e, Wave *w, const Ins *i) {
    const u32 *lo = reg(w, i->s[0]);
    if (i->s[2] >= 0) {
        u64 base = scalar_value64(w, i->s[2], 0);
        for (int l = 0; l < 64; l++) e->address[l] = base + lo[l] + (i64)i->offset;
    } else {
        const u32 *hi = reg(w, i->s[0] + 1);
        for (int l = 0; l < 64; l++) e->address[l] = (lo[l] | (u64)hi[l] << 32) + (i64)i->offset;
    }
}
static void flat_counts_twice(Wave *w, const Ins *i) {
    if (!(i->flags & F_FLAT)) return;
    Event e;
    begin(&e, w, i, K_FLAT, 0);
    push_lg(&e);
}
static void m_global_load(Wave *w, const Ins *i) {
    Event e;
    begin(&e, w, i, K_LOAD, i->words);
    e.sign = (i->flags & F_SIGNED) != 0;
    flat_addresses(&e, w, i);
    e.d = i->d;
    e.n = parts(&e);
    push_vm(&e);
    flat_counts_twice(w, i);
}
static void m_global_store(Wave *w, const Ins *i) {
    Event e;
    begin(&e, w, i, K_STORE, i->words);
    flat_addresses(&e, w, i);
    take_data(&e, i->s[1]);
    push_vm(&e);
    flat_counts_twice(w, i);
}
static void m_global_atomic(Wave *w, const Ins *i) {
    Event e;
    begin(&e, w, i, K_ATOMIC, i->words);
    flat_addresses(&e, w, i);
    take_data(&e, i->s[1]);
    e.action = (u8)i->imm;
    if (i->d >= 0) {
        e.returns = 1;
        e.d = i->d;
        e.n = i->words / 4;
    }
    push_vm(&e);
    flat_counts_twice(w, i);
}
static void lds_addresses(Event *e, Wave *w, const Ins *i) {
    const u32 *v = reg(w, i->s[0]);
    for (int l = 0; l < 64; l++) {
        e->address[l] = (u64)v[l] + (u32)i->offset;
        e->second[l] = v[l] + (u32)i->offset1;
    }
}
static void m_lds(Wave *w, const Ins *i) {
    Event e;
    begin(&e, w, i, K_LDS, i->words);
    e.action = (u8)i->imm;
    e.two = i->s[3] == 1; /* two offsets */
    e.sign = (i->flags & F_SIGNED) != 0;
    lds_addresses(&e, w, i);
    int words = i->words < 4 ? 1 : i->words / 4;
    if (i->s[1] >= 256) take_data(&e, i->s[1]);
    if (i->s[2] >= 256)
        for (int k = 0; k < words; k++) memcpy(e.data[words + k], reg(w, i->s[2] + k), 256);
    if (i->d >= 0) {
        e.d = i->d;
        e.n = words * (1 + e.two);
    }
    push_lg(&e);
}
static void m_swizzle(Wave *w, const Ins *i) {
    Event e;
    begin(&e, w, i, K_LDS, 4);
    const u32 *x = row(w, i, 0);
    u32 and = i->imm & 31, or = i->imm >> 5 & 31, xor = i->imm >> 10 & 31;
    for (int l = 0; l < 64; l++) {
        int from = (l & 32) | (int)((((u32)l & and) | or) ^ xor);
        e.data[0][l] = e.mask >> from & 1 ? x[from] : 0;
    }
    e.action = L_LANES;
    e.d = i->d;
    e.n = 1;
    push_lg(&e);
}
static void m_bpermute(Wave *w, const Ins *i) {
    Event e;
    begin(&e, w, i, K_LDS, 4);
    const u32 *a = reg(w, i->s[0]), *x = reg(w, i->s[1]);
    for (int l = 0; l < 64; l++) {
        int from = (int)((a[l] + (u32)i->offset) >> 2 & 63);
        e.data[0][l] = e.mask >> from & 1 ? x[from] : 0;
    }
    e.action = L_LANES;
    e.d = i->d;
    e.n = 1;
    push_lg(&e);
}

/* ---- flow ----------------------------------------------------------------------------------------------------- */
static void m_nothing(Wave *w, const Ins *i) { (void)w; (void)i; }
static void m_end(Wave *w, const Ins *i) {
    (void)i;
    w->done = 1;
    if (!w->m->o.late) return;
    force_lg(w, 0);
    for (int k = 0; k < w->vm_count;)
        if (is_load(w->vm[k])) { land_vm(w->vm[k]); remove_vm(w, k); }
        else k++;
}
static void m_barrier(Wave *w, const Ins *i) {
    Machine *m = w->m;
    m->barriers++;
    w->at_barrier = 1;
    if (!m->o.late) return;
    u32 n = 0;
    for (int k = 0; k < w->vm_count; k++) n += w->vm[k]->kind == K_DMA;
    if (n) report(m, w, X_BARRIER_DMA, i->pc, 0, 0, 0, ~0u, 0, n, 0);
}
static void m_wait(Wave *w, const Ins *i) {
    int vm = (int)((i->imm & 15) | (i->imm >> 14 & 3) << 4), lg = (int)(i->imm >> 8 & 15);
    Machine *m = w->m;
    if (m->o.stall)
        for (int k = 0; k < w->vm_count - vm; k++)
            if (is_store(w->vm[k]) && !w->vm[k]->visible && w->vm[k]->due > m->round) {
                w->stalled = 1; /* the others go on while this wave's stores are on their way */
                w->pc--;
                return;
            }
    force_vm(w, vm);
    if (m->o.late) force_lg(w, lg);
}
#define BRANCH(name, condition) static void m_branch_##name(Wave *w, const Ins *i) { if (condition) w->pc = i->target; }
static inline u64 vcc_of(const Wave *w) { return w->s[VCC] | (u64)w->s[VCC + 1] << 32; }
BRANCH(always, 1)
BRANCH(scc0, !w->scc)
BRANCH(scc1, w->scc)
BRANCH(vccz, vcc_of(w) == 0)
BRANCH(vccnz, vcc_of(w) != 0)
BRANCH(execz, exec_of(w) == 0)
BRANCH(execnz, exec_of(w) != 0)

/* The scale operand of v_cvt_scalef32: what a NaN among scales (exponent 255) gives, no source that we have says. */
static u32 known_scale(Wave *w, const Ins *i, int lane, u32 scale) {
    if ((scale >> 23 & 255) == 255 && exec_of(w) >> lane & 1) {
        report(w->m, w, X_UNDEFINED, i->pc, 0, 0, 0, ~0u, scale, lane, 0);
        halt(w->m, w, STOP_FAULT, i->pc);
    }
    return scale;
}
#define SCALE(x) known_scale(w, i, l, x)

//FUNCTIONS//

/* ---- the check of registers that a load will still write ---------------------------------------------------------- */
static void early_use(Wave *w, const Ins *i) {
    Machine *m = w->m;
    for (int n = 0; n < 8 && i->use[n] >= 0; n++) {
        int code = i->use[n];
        for (int k = 0; k < i->use_words[n]; k++) {
            if (code < 256) {
                if (w->pending_s[code + k]) report(m, w, X_REGISTER_EARLY, i->pc, 0, 0, 0, ~0u, (u64)(code + k), 0, 1);
                continue;
            }
            u64 lanes = w->pending[code - 256 + k] & (i->whole ? ~0ull : exec_of(w));
            if (!lanes) continue;
            u32 pc = 0;
            int vm = 0, lg = 0;
            for (int q = 0; q < w->vm_count; q++)
                if (w->vm[q]->d >= 0 && code + k >= w->vm[q]->d && code + k < w->vm[q]->d + w->vm[q]->n) { pc = w->vm[q]->ins->pc; vm = 1; }
            for (int q = 0; q < w->lg_count; q++)
                if (w->lg[q]->kind == K_LDS && w->lg[q]->d >= 0 && code + k >= w->lg[q]->d && code + k < w->lg[q]->d + w->lg[q]->n) { pc = w->lg[q]->ins->pc; lg = 1; }
            /* A load over a load of the same queue lands in order. */
            if (i->use_write >> n & 1 && ((i->use_write & 0x40 && vm && !lg) || (i->use_write & 0x80 && lg && !vm))) continue;
            report(m, w, X_REGISTER_EARLY, i->pc, pc, w->block->launch->code, 0, ~0u, (u64)(code + k), i->use_write >> n & 1, 1);
        }
    }
}

/* ---- blocks and the scheduler --------------------------------------------------------------------------------- */
static Wave *new_wave(Machine *m) {
    Wave *w = m->pooled ? m->pool[--m->pooled] : malloc(sizeof *w);
    return w;
}
static void start_block(Machine *m, Launch *l, u32 *ids) {
    u32 n = l->next++;
    Block *b = calloc(1, sizeof *b);
    b->launch = l;
    b->active = 1;
    b->x = n % l->grid[0];
    b->y = n / l->grid[0] % l->grid[1];
    b->z = n / l->grid[0] / l->grid[1];
    b->waves = l->waves_per_block;
    b->first = *ids;
    b->lds_size = l->lds;
    b->lds = malloc(LDS_BYTES);
    memset(b->lds, (int)m->o.lds_poison, l->lds ? l->lds : 1);
    b->wave = calloc(b->waves, sizeof *b->wave);
    if (m->o.late) {
        b->dma = calloc(LDS_BYTES / 4, 4);
        b->write = calloc(LDS_BYTES / 4, 4);
    }
    if (m->o.checks & C_LDS) b->lds_writer = calloc(LDS_BYTES / 4, 8);
    if (m->o.checks & C_RACES) b->issued = calloc(b->waves, 4);
    for (u32 k = 0; k < b->waves; k++) {
        Wave *w = b->wave[k] = new_wave(m);
        u32 *clock = w->clock;
        memset((u8 *)w + offsetof(Wave, s), 0, sizeof *w - offsetof(Wave, s));
        (void)clock;
        for (u32 r = 0; r < ROWS; r++)
            for (int q = 0; q < 64; q++) w->v[r][q] = m->o.register_poison;
        /* Beside s[0:1], the group's numbers and EXEC nothing is defined: M0, VCC and SCC no more than the others. */
        for (int r = 0; r < EXEC_LO; r++) w->s[r] = m->o.register_poison;
        w->scc = m->o.register_poison & 1;
        w->m = m;
        w->block = b;
        w->index = k;
        w->id = (*ids)++;
        for (int q = 0; q < 64; q++) w->v[0][q] = (u32)(64 * k + q);
        u32 s = l->user_sgprs;
        w->s[0] = (u32)l->kernarg;
        w->s[1] = (u32)(l->kernarg >> 32);
        if (l->group_id & 1) w->s[s++] = b->x;
        if (l->group_id & 2) w->s[s++] = b->y;
        if (l->group_id & 4) w->s[s++] = b->z;
        u32 threads = l->threads - 64 * k;
        set_s64(w, EXEC_LO, threads >= 64 ? ~0ull : (1ull << threads) - 1);
        w->slow = m->o.slow > 0 && uniform(m) < m->o.slow;
        if (m->o.checks & C_RACES) {
            w->clock = calloc(m->waves, 4);
            w->clock[w->id] = ~0u; /* own stores are always ordered for oneself */
        }
    }
    if (m->blocks == m->block_size) m->block = realloc(m->block, sizeof(Block *) * (m->block_size = m->block_size ? 2 * m->block_size : 64));
    m->block[m->blocks++] = b;
    l->live++;
}
static void end_block(Machine *m, Block *b) {
    for (u32 k = 0; k < b->waves; k++) {
        Wave *w = b->wave[k];
        if (m->o.late) force_vm(w, 0);
        free(w->clock);
        if (m->pooled < 8192) m->pool[m->pooled++] = w;
        else free(w);
    }
    b->launch->live--;
    free(b->lds); free(b->dma); free(b->write); free(b->lds_writer); free(b->issued); free(b->wave);
    free(b);
}
static void pass_barrier(Machine *m, Block *b) {
    b->barriers++;
    if (m->o.checks & C_RACES) {
        u32 *all = calloc(m->waves, 4);
        for (u32 k = 0; k < b->waves; k++) {
            Wave *w = b->wave[k];
            b->issued[k] = w->store_seq;
            u32 own = w->clock[w->id];
            w->clock[w->id] = 0;
            release(m, w, all);
            w->clock[w->id] = own;
        }
        for (u32 k = 0; k < b->waves; k++) {
            Wave *w = b->wave[k];
            join(w->clock, all, m->waves);
            w->clock[w->id] = ~0u;
        }
        free(all);
    }
    for (u32 k = 0; k < b->waves; k++) b->wave[k]->at_barrier = 0;
}
static u32 flag_sum(Machine *m, Wave *w, const Ins *i) {
    /* whether this instruction is about to store to a synchronising word */
    u64 a, e = exec_of(w);
    if (!e) return 0;
    int l = (int)lowest_bit(e);
    if (TABLE[i->function] == m_global_store) {
        a = i->s[2] >= 0 ? scalar_value64(w, i->s[2], 0) + reg(w, i->s[0])[l] + (i64)i->offset
                         : (reg(w, i->s[0])[l] | (u64)reg(w, i->s[0] + 1)[l] << 32) + (i64)i->offset;
    } else if (TABLE[i->function] == m_buffer_store) {
        a = (w->s[i->s[2]] | (u64)(w->s[i->s[2] + 1] & 0xFFFF) << 32) + (u32)i->offset + (i->s[0] >= 256 ? reg(w, i->s[0])[l] : 0) +
            scalar_value(w, i->s[3], i->literal);
    } else return 0;
    Region *r = find(m, a);
    return r && a < r->hi && is_sync(r, a);
}
/* Runs one wave for at most n instructions; returns how many ran. */
static u64 run_wave(Machine *m, Wave *w, u64 n) {
    const Ins *ins = w->block->launch->ins;
    u32 count = w->block->launch->count;
    u64 k = 0;
    while (k < n && !w->done && !w->at_barrier && !m->stop) {
        if ((u32)w->pc >= count) { halt(m, w, STOP_FAULT, ~0u); break; }
        const Ins *i = &ins[w->pc++];
        if (m->o.late) early_use(w, i);
        int freeze = m->o.schedule == 2 && flag_sum(m, w, i);
        if (m->opcode_count) m->opcode_count[i->function]++;
        TABLE[i->function](w, i);
        k++;
        if (w->stalled) { w->stalled = 0; break; }
        if (freeze) { w->frozen_until = m->steps + k + m->o.freeze; break; }
    }
    w->steps += k;
    return k;
}
static void fill(Machine *m, u32 *ids) {
    /* Per rank, launches and host writes come one after another, as in a stream. */
    for (u32 k = 0; k < m->launches; k++) {
        Launch *l = &m->launch[k];
        u32 total = l->grid[0] * l->grid[1] * l->grid[2];
        if (l->next == total) continue;
        int ready = 1;
        for (u32 q = 0; q < m->launches; q++) {
            Launch *o = &m->launch[q];
            if (o->rank == l->rank && o->order < l->order && (o->next < o->grid[0] * o->grid[1] * o->grid[2] || o->live)) ready = 0;
        }
        if (!ready) continue;
        if (!l->next)
            for (u32 q = 0; q < m->hosts; q++)
                if (m->host[q].rank == l->rank && m->host[q].order <= l->order && m->host[q].bytes) {
                    memmove((void *)m->host[q].to, (void *)m->host[q].from, m->host[q].bytes);
                    m->host[q].bytes = 0;
                }
        while (l->next < total && (!m->o.resident || l->live < m->o.resident)) start_block(m, l, ids);
    }
}
u32 machine_run(Machine *m) {
    static int ready;
    if (!ready) { make_tables(); ready = 1; }
    u32 ids = 0;
    m->random = m->o.seed * 0x2545F4914F6CDD1Dull + 1;
    m->live_size = 1024;
    m->live = calloc(m->live_size, sizeof(Event *));
    if (m->o.checks & C_RACES) {
        m->sync_size = 1 << 14;
        m->sync_key = calloc(m->sync_size, 8);
        m->sync_clock = calloc((u64)m->sync_size * m->waves, 4);
    }
    fill(m, &ids);
    u32 *order = 0, order_size = 0;
    while (m->blocks && !m->stop) {
        u64 progress = 0, frozen = 0;
        m->round++;
        u32 n = m->blocks;
        if (order_size < n) order = realloc(order, sizeof(u32) * (order_size = 2 * n));
        for (u32 k = 0; k < n; k++) order[k] = k;
        if (m->o.schedule == 1 || m->o.late)
            for (u32 k = n; k > 1; k--) {
                u32 j = (u32)(draw(m) % k), t = order[k - 1];
                order[k - 1] = order[j];
                order[j] = t;
            }
        for (u32 k = 0; k < n && !m->stop; k++) {
            Block *b = m->block[order[k]];
            u32 done = 0, waiting = 0, held = 0;
            for (u32 q = 0; q < b->waves && !m->stop; q++) {
                Wave *w = b->wave[q];
                if (m->o.late) tick(w);
                if (w->frozen_until > m->steps) { held++; frozen++; continue; }
                u64 slice = m->o.schedule == 1 || m->o.late ? 1 + draw(m) % m->o.quantum : m->o.quantum;
                u64 ran = w->done || w->at_barrier ? 0 : run_wave(m, w, slice);
                progress += ran;
                m->steps += ran;
                done += w->done;
                waiting += w->at_barrier;
            }
            if (!held && waiting && done + waiting == b->waves) {
                if (done) report(m, b->wave[0], X_BARRIER_MISSED, 0, 0, 0, 0, ~0u, done, waiting, 0);
                pass_barrier(m, b);
                progress++;
            }
        }
        for (u32 k = 0; k < m->blocks;) {
            Block *b = m->block[k];
            u32 done = 0;
            for (u32 q = 0; q < b->waves; q++) done += b->wave[q]->done;
            if (done < b->waves) { k++; continue; }
            end_block(m, b);
            m->block[k] = m->block[--m->blocks];
            progress++;
        }
        fill(m, &ids);
        if (m->steps > m->o.limit && m->blocks) { halt(m, m->block[0]->wave[0], STOP_LIMIT, 0); break; }
        if (!progress && m->blocks) {
            if (frozen) { /* only frozen waves are left: they go on */
                for (u32 k = 0; k < m->blocks; k++)
                    for (u32 q = 0; q < m->block[k]->waves; q++) m->block[k]->wave[q]->frozen_until = 0;
                continue;
            }
            int moving = 0;
            for (u32 k = 0; k < m->blocks && m->o.late; k++)
                for (u32 q = 0; q < m->block[k]->waves; q++) moving |= m->block[k]->wave[q]->vm_count > 0;
            if (!moving) halt(m, m->block[0]->wave[0], STOP_DEADLOCK, 0);
        }
    }
    /* After a stop: free what is left, without running it. */
    for (u32 k = 0; k < m->blocks; k++) {
        Block *b = m->block[k];
        for (u32 q = 0; q < b->waves; q++) {
            Wave *w = b->wave[q];
            if (m->o.late) {
                for (int e = 0; e < w->vm_count; e++) free(w->vm[e]);
                for (int e = 0; e < w->lg_count; e++) free(w->lg[e]);
            }
            free(w->clock);
            free(w);
        }
        free(b->lds); free(b->dma); free(b->write); free(b->lds_writer); free(b->issued); free(b->wave); free(b);
    }
    while (m->pooled) free(m->pool[--m->pooled]);
    free(order); free(m->live); free(m->sync_key); free(m->sync_clock); free(m->block);
    m->block = 0; m->blocks = m->block_size = 0; m->live = 0; m->sync_key = 0; m->sync_clock = 0;
    return m->stop;
}
/* One instruction on one wave, for the tests of single opcodes. */
void machine_step(Machine *m, Wave *w, const Ins *i) {
    static int ready;
    if (!ready) { make_tables(); ready = 1; }
    w->m = m;
    TABLE[i->function](w, i);
}
u64 machine_sizes(int what) {
    const u64 sizes[] = {sizeof(Wave), sizeof(Ins), sizeof(Machine), sizeof(Region), sizeof(Launch), sizeof(Options), sizeof(Finding),
                         sizeof(HostWrite), sizeof(Block)};
    return sizes[what];
}
