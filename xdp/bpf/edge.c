// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The data plane of an edge box. A packet to a service goes to the backend that
 * the flow tables or the service's ring name: to the stack if that is this box,
 * else out again, encapsulated. A packet that another box encapsulated for us is
 * taken out of its tunnel. Everything else is the stack's, untouched.
 *
 * Functions that are not static are verified once, by themselves: that keeps the
 * number of paths that the verifier walks a sum, where it would be a product.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#ifndef barrier
#define barrier() asm volatile("" ::: "memory")
#endif

#include "reasons.h"
#include "maps.h"
#include "block.h"
#include "parse.h"
#include "hash.h"
#include "table.h"
#include "choose.h"
#include "encap.h"
#include "icmp.h"
#include "decap.h"
#include "capture.h"

static __always_inline void count_backend(__u32 id, __u32 len)
{
	struct count *n = bpf_map_lookup_elem(&backend_count, &id);

	if (!n)
		return;
	n->packets++;
	n->bytes += len;
}

/*
 * A packet of service p->svc. Its table is looked up once: the one that chooses
 * the backend also says how to reach it, if it is swapped in between or not.
 */
static __always_inline enum verdict forward(struct xdp_md *ctx, struct packet *p, __u32 vlans)
{
	struct svc_table *t = table_of(p->svc);
	__u32 id, len = p->len;
	struct backend *b;
	enum verdict v;

	if (!t)
		return DROP_NO_TABLE;
	id = choose(ctx, p, t);
	if (CHOSEN_VERDICT(id))
		return CHOSEN_VERDICT(id);
	id = CHOSEN_ID(id);
	b = bpf_map_lookup_elem(&backend, &id);
	if (!b)
		return DROP_STALE_BACKEND;
	v = PASS_LOCAL;
	if (!(b->flags & BACKEND_LOCAL))
		v = encapsulate(ctx, p, t, id, vlans);
	if (v == TX_TOO_BIG)
		return tell_too_big(ctx, p);
	if (VERDICT_ACTION(v) != ACTION_DROP)
		count_backend(id, len);
	return v;
}

/* A packet to an address that is a VIP's, with these addr_flags. */
static __always_inline enum verdict to_vip(struct xdp_md *ctx, struct packet *p, const struct host *h,
					   __u32 flags)
{
	enum verdict v = parse(ctx, p, h->blocked);

	if (v != VERDICT_NONE)
		return v;
	if (p->kind == KIND_ECHO)
		return echo(ctx, p);
	if (p->kind == KIND_ERROR)
		v = unquote(ctx, p);
	if (v == VERDICT_NONE)
		v = find_service(p, flags);
	return v == VERDICT_NONE ? forward(ctx, p, h->vlans) : v;
}

/* Says whether a frame is for this box, by its destination MAC address. */
static __always_inline int is_ours(const struct host *h, const struct ethhdr *eth)
{
	__u64 mac = *(const __u32 *)eth->h_dest | (__u64) * (const __u16 *)(eth->h_dest + 4) << 32;

	for (int i = 0; i < MAX_MACS; i++) {
		if (!h->mac[i])
			break;
		if (h->mac[i] == mac)
			return 1;
	}
	return 0;
}

static __always_inline enum verdict classify(struct xdp_md *ctx, const struct host *h)
{
	struct cursor c = cursor(ctx);
	struct ethhdr *eth = take(&c, sizeof(*eth));
	struct packet p = { .l3 = sizeof(*eth) };
	__u8 dst[16] = {};
	enum verdict v;
	__u32 *kind;
	int proto;

	if (!eth)
		return PASS_NOT_IP;
	if (eth->h_dest[0] & 1)
		return PASS_MULTICAST_MAC;
	proto = parse_vlan(&c, eth->h_proto, &p);
	if (proto < 0)
		return PASS_VLAN;
	p.v6 = proto == bpf_htons(ETH_P_IPV6);
	if (!p.v6 && proto != bpf_htons(ETH_P_IP))
		return PASS_NOT_IP;
	v = parse_dst(c, p.v6, dst);
	if (v != VERDICT_NONE)
		return v;
	kind = bpf_map_lookup_elem(&addr, dst);
	if (!kind)
		return PASS_NOT_VIP;
	if (!is_ours(h, eth))
		return PASS_FOREIGN_MAC;
	p.room = c.end - c.pos;
	if ((*kind & ADDR_KIND_MASK) == ADDR_TUNNEL)
		return decap(ctx, &p);
	return to_vip(ctx, &p, h, *kind);
}

/* The only way out: each packet is counted under exactly one verdict. */
static __always_inline int leave(struct verdicts *n, enum verdict v)
{
	n->left[v & 0xff]++;
	switch (VERDICT_ACTION(v)) {
	case ACTION_PASS:
		return XDP_PASS;
	case ACTION_TX:
		return XDP_TX;
	case ACTION_REDIRECT:
		return XDP_REDIRECT;
	}
	return XDP_DROP;
}

SEC("xdp")
int edge(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct verdicts *n = bpf_map_lookup_elem(&verdict_count, &zero);
	struct host *h = bpf_map_lookup_elem(&host, &zero);
	enum verdict v;

	if (!n || !h)
		return XDP_ABORTED; /* there is always an element 0 */
	n->received++;
	v = classify(ctx, h);
	if (is_sampled(h, v))
		capture(ctx, v);
	return leave(n, v);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
