/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef TABLE_H
#define TABLE_H

/*
 * The flow tables. A place in flow is bucket * WAYS + way + 1; 0 is none. The
 * functions that search are verified once each, and hand back a number instead
 * of a pointer: else the verifier would follow sixteen pointers to the end.
 */

static __always_inline __u32 tick(void)
{
	return bpf_ktime_get_coarse_ns() >> TICK_SHIFT;
}

static __always_inline int is_alive(__u32 until, __u32 now)
{
	return (__s32)(until - now) >= 0;
}

/* Which of n a hash names, by its upper half: the ring takes the lower one. */
static __always_inline __u32 one_of(__u64 hash, __u32 n)
{
	return (hash >> 32) * n >> 32;
}

/* The other bucket of a hash, whose first one is a. */
static __always_inline __u32 other_bucket(__u64 hash, __u32 a, __u32 n)
{
	__u32 b = (__u64)((__u32)hash * 0x9e3779b1u) * n >> 32;

	if (a != b)
		return b;
	return a + 1 < n ? a + 1 : 0;
}

/* Says whether a word of a bucket is that of a flow. */
static __always_inline int is_of(__u64 word, __u64 hash)
{
	return !((word ^ hash << ID_BITS) >> ID_BITS);
}

static __always_inline __u32 find_in(__u32 bucket, __u64 hash, __u32 now)
{
	struct flow_bucket *b = bpf_map_lookup_elem(&flow, &bucket);

	if (!b)
		return 0;
#pragma unroll
	for (int i = 0; i < WAYS; i++)
		if (is_of(b->flow[i], hash) && is_alive(b->term[i].until, now))
			return bucket * WAYS + i + 1;
	return 0;
}

/* The place of a flow that is alive. */
__noinline __u32 find_flow(__u64 hash, __u32 now)
{
	__u32 a = one_of(hash, flow_buckets);
	__u32 place = find_in(a, hash, now);

	return place ? place : find_in(other_bucket(hash, a, flow_buckets), hash, now);
}

static __always_inline struct flow_bucket *bucket_of(__u32 place)
{
	__u32 at = (place - 1) / WAYS;

	return bpf_map_lookup_elem(&flow, &at);
}

/*
 * The life of the backend that a flow has at a place, generation << 32 | id; 0 if
 * it is no longer there.
 */
static __always_inline __u64 life_at(__u32 place, __u64 hash)
{
	struct flow_bucket *b = bucket_of(place);
	__u32 way = (place - 1) % WAYS;
	__u64 word;

	if (!b)
		return 0;
	word = *(volatile __u64 *)&b->flow[way];
	if (!is_of(word, hash))
		return 0;
	return (__u64)b->term[way].generation << 32 | (word & ((1 << ID_BITS) - 1));
}

static __always_inline void renew(__u32 place, __u32 until)
{
	struct flow_bucket *b = bucket_of(place);
	__u32 way = (place - 1) % WAYS;

	if (b && b->term[way].until != until)
		b->term[way].until = until;
}

/*
 * Where a flow that is in neither bucket goes: into the one with more free ways;
 * if there is none, in place of the flow that has the least time left.
 */
#define ROOM_FREE(r) ((r) & 0xff)
#define ROOM_BEST(r) ((r) >> 8)

/*
 * Returns the ways that are free, and << 8 the least of ticks left + 1, or 0 if
 * free, << 8 | way. Without a branch but for the least: sixteen ways with three
 * outcomes each are too many paths for the verifier.
 */
static __noinline __u64 room_in(const struct flow_bucket *b, __u32 now)
{
	__u64 best = ~0ULL, free = 0;

#pragma unroll
	for (int i = 0; i < WAYS; i++) {
		__u64 word, rank;
		__s64 left, used;

		barrier(); /* or all ways are loaded first, and take the stack */
		word = b->flow[i];
		left = (__s32)(b->term[i].until - now);
		used = (__s64)(word | -word) >> 63; /* all bits, or none */
		used &= ~(left >> 63);
		asm volatile("" : "+r"(used)); /* or the compiler makes a branch of it */
		rank = (left + 1) & used;
		free += 1 + used;
		rank = rank << 8 | i;
		if (rank < best)
			best = rank;
	}
	return best << 8 | free;
}

/* Returns the place for a flow; bit 31 says that a live one loses it. */
#define EVICTS 0x80000000u

static __always_inline __u32 place(__u32 bucket, __u64 room)
{
	__u32 way = ROOM_BEST(room) & (WAYS - 1);

	return (bucket * WAYS + way + 1) | (ROOM_FREE(room) ? 0 : EVICTS);
}

static __always_inline __u32 place_for(__u64 hash, __u32 now)
{
	__u32 at_a = one_of(hash, flow_buckets), at_b = other_bucket(hash, at_a, flow_buckets);
	struct flow_bucket *a = bpf_map_lookup_elem(&flow, &at_a);
	struct flow_bucket *b = bpf_map_lookup_elem(&flow, &at_b);
	__u64 room_a, room_b;

	if (!a || !b)
		return 0;
	room_a = room_in(a, now);
	room_b = room_in(b, now);
	if (ROOM_FREE(room_a) > ROOM_FREE(room_b) ||
	    (ROOM_FREE(room_a) == ROOM_FREE(room_b) && ROOM_BEST(room_a) >> 8 <= ROOM_BEST(room_b) >> 8))
		return place(at_a, room_a);
	return place(at_b, room_b);
}

/* What is put into a table. */
struct entry {
	__u64 hash;
	__u64 life;
	__u32 until;
	__u32 svc;
	struct flow_tuple tuple;
};

/*
 * Writes a flow at a place. The time comes before the flow: else a CPU that looks
 * for room would take the way for free in between. Who reads the detail finds
 * nothing until all is written.
 */
static __always_inline void write_at(__u32 place, const struct entry *e)
{
	struct flow_term term = { .until = e->until, .generation = e->life >> 32 };
	__u32 at = place - 1, way = at % WAYS;
	struct flow_bucket *b = bucket_of(place);
	struct flow_detail *d = bpf_map_lookup_elem(&flow_detail, &at);

	if (!b || !d)
		return;
	*(volatile __u64 *)&d->hash = 0;
	barrier();
	b->term[way] = term;
	barrier();
	*(volatile __u64 *)&b->flow[way] = e->hash << ID_BITS | (e->life & ((1 << ID_BITS) - 1));
	d->svc = e->svc;
	d->tuple = e->tuple;
	barrier();
	*(volatile __u64 *)&d->hash = e->hash;
}

/* Puts a flow that is not there. Returns 1 if a live one has lost its place. */
__noinline int put_flow(struct entry *e, __u32 now)
{
	__u32 place;

	if (!e)
		return 0;
	place = place_for(e->hash, now);
	write_at(place & ~EVICTS, e);
	return place >> 31;
}

/*
 * In half a flow has one place, and takes it: what a flood costs is a write or
 * two, with nothing to look at before. Who loses a place there follows the ring,
 * as it has just done.
 */
static __always_inline struct half_flow *half_of(__u64 hash)
{
	__u32 at = one_of(hash, half_places);

	return bpf_map_lookup_elem(&half, &at);
}

/* The life that a place in half has for a flow; 0 if none. */
static __always_inline __u64 life_in(const struct half_flow *h, __u64 hash, __u32 now)
{
	__u64 check = *(const volatile __u64 *)&h->check;
	__u64 life = *(const volatile __u64 *)&h->life;

	return check == (hash ^ life) && is_alive(h->until, now) ? life : 0;
}

static __always_inline void forget_half(struct half_flow *h)
{
	*(volatile __u64 *)&h->life = 0;
}

/*
 * The life is taken away first and put back last: who looks in between finds
 * nothing. Two writers at once leave a check that does not fit, unless both mean
 * the same backend.
 */
static __always_inline void put_half(const struct entry *e)
{
	struct half_flow *h = half_of(e->hash);

	if (!h)
		return;
	forget_half(h);
	*(volatile __u64 *)&h->check = e->hash ^ e->life;
	h->until = e->until;
	h->svc = e->svc;
	h->tuple = e->tuple;
	barrier();
	*(volatile __u64 *)&h->life = e->life;
}

#endif
