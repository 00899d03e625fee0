/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef BLOCK_H
#define BLOCK_H

/*
 * Says whether the filter rules out that a source is in the blocklist. IPv4 has a
 * bit for each /24; IPv6 one for a hash of the /48 and one for that of the /32. A
 * prefix has set that of what it lies in, or those of all that lie in it.
 */
static __always_inline int has_bit(void *filter, __u32 bit)
{
	__u32 at = bit / 64;
	__u64 *word = bpf_map_lookup_elem(filter, &at);

	return !word || *word >> (bit % 64) & 1;
}

static __always_inline __u32 block_bit6(__u64 upper)
{
	return BLOCK_BITS + (upper * BLOCK_SPREAD >> (64 - BLOCK_ORDER));
}

static __always_inline int may_be_listed(void *filter, const struct prefix *source, int v6)
{
	const __u32 *w = (const __u32 *)source->addr;
	__u64 first32 = w[0], first48 = first32 | (__u64)(w[1] & 0xffff) << 32;

	if (!v6)
		return has_bit(filter, bpf_ntohl(w[3]) >> 8);
	return has_bit(filter, block_bit6(first48)) || has_bit(filter, block_bit6(first32 | BLOCK_TELL32));
}

/*
 * A search in the list goes from node to node through memory, so it is asked only
 * about those whom the filter does not rule out. There is no filter while the
 * list is being swapped.
 */
static __noinline int is_listed(const struct prefix *source, int v6)
{
	__u32 zero = 0;
	void *filter = bpf_map_lookup_elem(&block_filter, &zero);
	void *list;

	if (filter && !may_be_listed(filter, source, v6))
		return 0;
	list = bpf_map_lookup_elem(&blocklist, &zero);
	return list && bpf_map_lookup_elem(list, source);
}

static __always_inline int is_blocked(const __u8 *src, int v6)
{
	const __u32 *from = (const __u32 *)src;
	struct prefix source = { .bits = 128 };
	__u32 *to = (__u32 *)source.addr;

#pragma unroll
	for (int i = 0; i < 4; i++)
		to[i] = from[i];
	return is_listed(&source, v6);
}

#endif
