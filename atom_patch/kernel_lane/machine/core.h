/* The machine: what a wave is, and how operands are read and written. Layouts shared with machine/__init__.py. */
typedef struct Wave Wave;
typedef struct Ins Ins;
typedef void (*Execute)(Wave *, const Ins *);

enum { VCC = 106, M0 = 124, EXEC_LO = 126, SCC_CODE = 253, LITERAL = 255, ROWS = 512, LDS_BYTES = 163840 };
enum { FORM_PLAIN, FORM_DPP, FORM_SDWA };
enum { F_SC0 = 1, F_SC1 = 2, F_NT = 4, F_LDS = 8, F_OFFEN = 16, F_FLAT = 32, F_SIGNED = 64 };

/* One decoded instruction, filled by Python; codes as in decode.py. */
struct Ins {
    u32 function; /* index into the table of functions */
    u32 pc;
    i32 target; /* index of a branch's target */
    i16 s[5], d, sd;
    u16 flags;
    u32 literal, imm;
    i32 offset, offset1;
    u8 form, neg, abs, opsel, opsel_hi, fmt_a, fmt_b, words;
    u16 dpp;
    u8 row_mask, bank_mask, bound, sel_d, unused, sel0, sel1, sext;
    i16 use[8]; /* registers read or written, for the check of pending loads: first code */
    u8 use_words[8];
    u8 use_write; /* bit n: use[n] is written */
    u8 whole; /* all lanes matter, whatever EXEC */
};

typedef struct Event Event;
typedef struct Block Block;
typedef struct Launch Launch;
typedef struct Machine Machine;

struct Wave {
    u32 v[ROWS][64];
    u32 s[128];
    u32 scc;
    i32 pc;
    u32 tmp[3][64];
    Machine *m;
    Block *block;
    u32 id, index;
    u8 done, at_barrier, stalled, slow;
    u64 steps, frozen_until;
    /* outstanding operations, oldest first; in-order runs keep only their store numbers */
    Event *vm[64], *lg[16];
    u32 vm_store[64];
    int vm_count, lg_count;
    u64 pending[ROWS]; /* lanes of a register that a load will still write */
    u8 pending_s[128];
    u32 store_seq, waited_seq; /* stores issued; stores known complete through s_waitcnt */
    u32 *clock;                /* vector clock, when races are looked for */
};

static inline u64 exec_of(const Wave *w) { return w->s[EXEC_LO] | (u64)w->s[EXEC_LO + 1] << 32; }
static inline u32 *reg(Wave *w, int code) { return w->v[code - 256]; }

static const u32 float_constants[9] = {0x3F000000, 0xBF000000, 0x3F800000, 0xBF800000, 0x40000000,
                                       0xC0000000, 0x40800000, 0xC0800000, 0x3E22F983};
static inline u32 scalar_value(const Wave *w, int code, u32 literal) {
    if (code < 128) return w->s[code];
    if (code <= 192) return (u32)(code - 128);
    if (code <= 208) return (u32)(192 - code);
    if (code == SCC_CODE) return w->scc;
    if (code == LITERAL) return literal;
    return float_constants[code - 240];
}
static inline u64 scalar_value64(const Wave *w, int code, u32 literal) {
    if (code < 128) return w->s[code] | (u64)w->s[code + 1] << 32;
    if (code <= 192) return (u64)(code - 128);
    if (code <= 208) return (u64)(i64)(192 - code);
    if (code == SCC_CODE) return w->scc;
    return literal; /* zero-extended; float constants do not reach here (lower.py) */
}
static inline u32 get_s32(const Wave *w, const Ins *i, int n) { return scalar_value(w, i->s[n], i->literal); }
static inline u64 get_s64(const Wave *w, const Ins *i, int n) { return scalar_value64(w, i->s[n], i->literal); }
static inline void set_s32(Wave *w, int code, u32 value) { w->s[code] = value; }
static inline void set_s64(Wave *w, int code, u64 value) {
    w->s[code] = (u32)value;
    w->s[code + 1] = (u32)(value >> 32);
}

static void dpp_lanes(const Ins *i, int *from, u64 *valid) {
    *valid = 0;
    for (int l = 0; l < 64; l++) {
        int row = l & 48, j = l & 15, c = i->dpp, n = c & 15, src = l, ok = 1;
        if (c < 0x100) src = (l & ~3) | (c >> 2 * (l & 3) & 3);
        else if (c < 0x110) { src = l + n; ok = j + n < 16; }
        else if (c < 0x120) { src = l - n; ok = j >= n; }
        else if (c < 0x130) src = row | ((j - n) & 15);
        else if (c == 0x140) src = row | (15 - j);
        else if (c == 0x141) src = (l & ~7) | (7 - (l & 7));
        else if (c == 0x142) { src = row - 1; ok = row > 0; }
        else if (c == 0x143) { src = 31; ok = l >= 32; }
        else src = row | n;
        from[l] = ok ? src : 0;
        if (ok) *valid |= 1ull << l;
    }
}
static inline u32 sub_dword(u32 x, int sel, int sext) {
    if (sel == 6) return x;
    if (sel < 4) { x = x >> 8 * sel & 255; return sext ? (u32)(i32)(i8)x : x; }
    x = x >> 16 * (sel - 4) & 0xFFFF;
    return sext ? (u32)(i32)(i16)x : x;
}
/* The 64 lane values of source n, with the modifiers that belong to a source. */
static const u32 *row(Wave *w, const Ins *i, int n) {
    int code = i->s[n];
    u32 *t = w->tmp[n];
    const u32 *p;
    if (code >= 256) p = w->v[code - 256];
    else {
        u32 x = scalar_value(w, code, i->literal);
        for (int l = 0; l < 64; l++) t[l] = x;
        p = t;
    }
    if (i->form == FORM_DPP && n == 0) {
        int from[64];
        u64 valid, e = exec_of(w);
        dpp_lanes(i, from, &valid);
        for (int l = 0; l < 64; l++) t[l] = valid >> l & e >> from[l] & 1 ? p[from[l]] : 0;
        p = t;
    } else if (i->form == FORM_SDWA && n < 2) {
        int sel = n ? i->sel1 : i->sel0, sext = i->sext >> n & 1;
        for (int l = 0; l < 64; l++) t[l] = sub_dword(p[l], sel, sext);
        p = t;
    }
    if ((i->neg | i->abs) >> n & 1) {
        u32 keep = i->abs >> n & 1 ? 0x7FFFFFFF : ~0u, flip = i->neg >> n & 1 ? 0x80000000 : 0;
        for (int l = 0; l < 64; l++) t[l] = (p[l] & keep) ^ flip;
        p = t;
    }
    return p;
}
static void wide(Wave *w, const Ins *i, int n, u64 *out) {
    int code = i->s[n];
    if (code >= 256) {
        const u32 *a = w->v[code - 256], *b = w->v[code - 255];
        for (int l = 0; l < 64; l++) out[l] = a[l] | (u64)b[l] << 32;
    } else {
        u64 x = scalar_value64(w, code, i->literal);
        for (int l = 0; l < 64; l++) out[l] = x;
    }
}
/* One half of a packed source: register `code` or the next, as op_sel says for the low (high=0) or high result. */
static const u32 *half(Wave *w, const Ins *i, int n, int high) {
    int code = i->s[n], second = (high ? i->opsel_hi : i->opsel) >> n & 1;
    if (code >= 256) return w->v[code - 256 + second];
    u32 x = code < 128 ? w->s[code + second] : scalar_value(w, code, i->literal);
    for (int l = 0; l < 64; l++) w->tmp[n][l] = x;
    return w->tmp[n];
}
static void put_masked(Wave *w, int code, const u32 *values, u64 mask) {
    u32 *d = reg(w, code);
    if (mask == ~0ull) memcpy(d, values, 256);
    else
        for (int l = 0; l < 64; l++) d[l] = mask >> l & 1 ? values[l] : d[l];
}
static inline void put(Wave *w, int code, const u32 *values) { put_masked(w, code, values, exec_of(w)); }
/* A lane instruction's result: DPP narrows the lanes, SDWA places the bits. */
static void put_result(Wave *w, const Ins *i, u32 *r) {
    u64 mask = exec_of(w);
    if (i->form == FORM_DPP) {
        int from[64];
        u64 valid, ok = 0;
        dpp_lanes(i, from, &valid);
        for (int l = 0; l < 64; l++) {
            int written = i->row_mask >> (l >> 4) & 1 && i->bank_mask >> (l >> 2 & 3) & 1;
            int usable = i->bound || (valid >> l & 1 && mask >> from[l] & 1);
            if (written && usable) ok |= 1ull << l;
        }
        mask &= ok;
    } else if (i->form == FORM_SDWA && i->sel_d != 6) {
        const u32 *old = reg(w, i->d);
        int bits = i->sel_d < 4 ? 8 : 16, at = i->sel_d < 4 ? 8 * i->sel_d : 16 * (i->sel_d - 4);
        u32 field = ((1u << bits) - 1) << at;
        for (int l = 0; l < 64; l++) {
            u32 value = r[l] << at & field, rest = 0;
            if (i->unused == 2) rest = old[l] & ~field;
            else if (i->unused == 1 && r[l] >> (bits - 1) & 1) rest = at + bits < 32 ? ~0u << (at + bits) : 0;
            r[l] = value | rest;
        }
    }
    put_masked(w, i->d, r, mask);
}
static void put_wide(Wave *w, const Ins *i, const u64 *r) {
    u32 lo[64], hi[64];
    for (int l = 0; l < 64; l++) { lo[l] = (u32)r[l]; hi[l] = (u32)(r[l] >> 32); }
    put(w, i->d, lo);
    put(w, i->d + 1, hi);
}
static inline u64 pack_bits(const u8 *p) {
    u64 out = 0;
    for (int l = 0; l < 64; l++) out |= (u64)(p[l] & 1) << l;
    return out;
}
static void swap_rows(u32 *a, u32 *b, int n) {
    for (int r = 0; r < 64; r += 2 * n)
        for (int l = 0; l < n; l++) {
            u32 t = a[r + n + l];
            a[r + n + l] = b[r + l];
            b[r + l] = t;
        }
}

/* ---- matrix product ------------------------------------------------------------------------------------------- */
static double fp8_value[256];
static double fp4_value[16];
static double e8m0_value[256];
static void make_tables(void) {
    static const double four[8] = {0, .5, 1, 1.5, 2, 3, 4, 6};
    for (int c = 0; c < 256; c++) {
        int e = c >> 3 & 15, m = c & 7;
        double v = e == 15 && m == 7 ? NAN : e ? ldexp(8 + m, e - 10) : ldexp(m, -9);
        fp8_value[c] = c & 128 ? -v : v;
        e8m0_value[c] = c == 255 ? NAN : ldexp(1, c - 127);
    }
    for (int c = 0; c < 16; c++) fp4_value[c] = c & 8 ? -four[c & 7] : four[c & 7];
}
/* One operand: 128 values of 16 rows, as [k][row], and per row 4 scales, as [k block][row]. */
static void mfma_operand(Wave *w, int code, int form, int scale_code, int byte, double (*x)[16], double (*scale)[16]) {
    for (int l = 0; l < 64; l++) {
        int m = l & 15, q = l >> 4;
        u32 s = reg(w, scale_code)[l] >> 8 * byte & 255;
        scale[q][m] = e8m0_value[s];
        if (form == 0)
            for (int k = 0; k < 32; k++) {
                u32 c = w->v[code - 256 + k / 4][l] >> 8 * (k & 3) & 255;
                x[k < 16 ? 16 * q + k : 64 + 16 * q + k - 16][m] = fp8_value[c];
            }
        else
            for (int k = 0; k < 32; k++) x[32 * q + k][m] = fp4_value[w->v[code - 256 + k / 8][l] >> 4 * (k & 7) & 15];
    }
}
typedef double Row8 __attribute__((vector_size(64)));
/* Exact inside each block of 32 (float64 holds the products and their sum, in any order), float64 across blocks and C, one
   rounding. Four rows at a time: their sums stay in registers, where one row's would wait for its own last addition. */
static void mfma_16x16x128(Wave *w, const Ins *i) {
    double a[128][16], sa[4][16], sb[4][16], d[16][16] = {{0}};
    Row8 b[128][2];
    mfma_operand(w, i->s[0], i->fmt_a, i->s[3], (i->opsel & 1) + 2 * (i->opsel_hi & 1), a, sa);
    mfma_operand(w, i->s[1], i->fmt_b, i->s[4], (i->opsel >> 1 & 1) + 2 * (i->opsel_hi >> 1 & 1), (double(*)[16])b, sb);
    for (int q = 0; q < 4; q++)
        for (int m = 0; m < 16; m += 4) {
            Row8 sum[4][2] = {{{0}}};
            for (int k = 32 * q; k < 32 * q + 32; k++)
                for (int r = 0; r < 4; r++) {
                    sum[r][0] += a[k][m + r] * b[k][0];
                    sum[r][1] += a[k][m + r] * b[k][1];
                }
            for (int r = 0; r < 4; r++)
                for (int n = 0; n < 16; n++) d[m + r][n] += sum[r][n / 8][n % 8] * (sa[q][m + r] * sb[q][n]);
        }
    for (int l = 0; l < 64; l++)
        for (int r = 0; r < 4; r++) {
            int m = 4 * (l >> 4) + r, n = l & 15;
            double c = i->s[2] >= 256 ? as_f(w->v[i->s[2] - 256 + r][l]) : as_f(scalar_value(w, i->s[2], i->literal));
            d[m][n] += c;
        }
    for (int l = 0; l < 64; l++)
        for (int r = 0; r < 4; r++) w->v[i->d - 256 + r][l] = from_f((float)d[4 * (l >> 4) + r][l & 15]);
}
