// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The data plane of an edge box. A packet to a service goes to the backend that
 * the flow table or the service's ring names: to the stack if that is this box,
 * else out again, encapsulated. A packet that another box encapsulated for us is
 * taken out of its tunnel. Everything else is the stack's, untouched.
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

#include "reasons.h"
#include "maps.h"
#include "parse.h"
#include "flow.h"
#include "encap.h"
#include "decap.h"

/* A flow's backend: the one it has, or for a new flow the ring's. */
static __noinline enum verdict choose(const struct svc_table *t, const struct packet *p, __u64 hash,
				      __u32 *id, struct backend **to)
{
	__u32 at = (__u32)hash % RING_SIZE;

	/* A SYN opens a connection, whatever had the same ports before. */
	if (!p->syn) {
		*to = tracked(&p->key, id);
		if (*to)
			return VERDICT_NONE;
	}
	if (!t->n_backends)
		return DROP_NO_BACKEND;
	/* The compiler, sure of the range, would drop the check that the verifier wants. */
	asm volatile("" : "+r"(at));
	if (at >= RING_SIZE)
		return DROP_STALE_BACKEND;
	*id = t->slot[at];
	*to = bpf_map_lookup_elem(&backend, id);
	if (!*to || !is_alive((*to)->life))
		return DROP_STALE_BACKEND;
	/* A reset ends a flow: it must not push another out of the table. */
	if (!p->rst)
		track(&p->key, *id, *to);
	return VERDICT_NONE;
}

/* Sends a packet to a backend that is another box. */
static __always_inline enum verdict encapsulate(struct xdp_md *ctx, const struct packet *p,
						const struct svc_table *t, const struct backend *b,
						__u64 hash)
{
	struct bpf_fib_lookup fib = {};
	struct outer o = { .hash = hash };
	enum verdict v;

	if (p->ttl <= 1)
		return DROP_TTL;
	plan_outer(&o, t, b, p);
	v = route(ctx, &o, t, b, &fib);
	if (v != VERDICT_NONE)
		return v;
	if (trim(ctx, p) || age(ctx, p->v6) || push(ctx, &o, t, b, &fib))
		return DROP_NO_HEADROOM;
	if (fib.ifindex == ctx->ingress_ifindex)
		return TX_BACKEND;
	/* With flags 0 it cannot fail before the end of the program. */
	bpf_redirect(fib.ifindex, 0);
	return REDIRECT_BACKEND;
}

static __always_inline struct svc_table *table_of(__u32 svc_id)
{
	__u32 zero = 0;
	void *inner = bpf_map_lookup_elem(&svc, &svc_id);

	return inner ? bpf_map_lookup_elem(inner, &zero) : NULL;
}

/* A packet of a service: svc_id is in its key. */
static __noinline enum verdict forward(struct xdp_md *ctx, struct packet *p)
{
	struct svc_table *t = table_of(p->key.svc);
	struct svc_count *n = bpf_map_lookup_elem(&svc_count, &p->key.svc);
	struct backend *b = NULL;
	struct count *bn;
	enum verdict v;
	__u32 id = 0;
	__u64 hash;

	if (!t || !n)
		return DROP_NO_TABLE;
	n->packets++;
	n->bytes += p->len;
	hash = flow_hash(t->seed, &p->key);
	v = choose(t, p, hash, &id, &b);
	if (v != VERDICT_NONE)
		return v;
	v = PASS_LOCAL;
	if (!(b->flags & BACKEND_LOCAL))
		v = encapsulate(ctx, p, t, b, hash);
	bn = bpf_map_lookup_elem(&backend_count, &id);
	if (bn && VERDICT_ACTION(v) != ACTION_DROP) {
		bn->packets++;
		bn->bytes += p->len;
	}
	return v;
}

/* A packet to an address that is a VIP's. */
static __always_inline enum verdict to_vip(struct xdp_md *ctx, struct cursor *c, int v6)
{
	struct packet p = { .room = c->end - c->pos };
	struct vip_key key = {};
	enum verdict v = parse(c, v6, &p);
	__u32 *id;

	if (v != VERDICT_NONE)
		return v;
	__builtin_memcpy(key.addr, p.key.dst, sizeof(key.addr));
	key.port = p.key.dport;
	key.proto = p.key.proto;
	id = bpf_map_lookup_elem(&vip, &key);
	if (!id)
		return PASS_NO_SERVICE;
	p.key.svc = *id;
	return forward(ctx, &p);
}

static __always_inline enum verdict classify(struct xdp_md *ctx)
{
	struct cursor c = cursor(ctx);
	struct ethhdr *eth = take(&c, sizeof(*eth));
	__u8 dst[16] = {};
	enum verdict v;
	__u32 *kind;
	int v6;

	if (!eth)
		return PASS_NOT_IP;
	if (eth->h_dest[0] & 1)
		return PASS_MULTICAST_MAC;
	if (eth->h_proto == bpf_htons(ETH_P_8021Q) || eth->h_proto == bpf_htons(ETH_P_8021AD))
		return PASS_VLAN;
	v6 = eth->h_proto == bpf_htons(ETH_P_IPV6);
	if (!v6 && eth->h_proto != bpf_htons(ETH_P_IP))
		return PASS_NOT_IP;
	v = parse_dst(c, v6, dst);
	if (v != VERDICT_NONE)
		return v;
	kind = bpf_map_lookup_elem(&addr, dst);
	if (!kind)
		return PASS_NOT_VIP;
	if (*kind == ADDR_TUNNEL)
		return decap(ctx, v6);
	return to_vip(ctx, &c, v6);
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

	if (!n)
		return XDP_ABORTED; /* there is always an element 0 */
	n->received++;
	return leave(n, classify(ctx));
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
