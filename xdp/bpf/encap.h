/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef ENCAP_H
#define ENCAP_H

#define AF_INET	   2
#define AF_INET6   10
#define GUE_PORT   6080
#define OUTER_TTL  64
#define DSCP_MASK  0xfc
#define MAX_IP_LEN 65535

/* What is put around a packet. */
struct outer {
	__u32 overhead; /* bytes, without Ethernet */
	__u32 len;	/* outer header and packet, in bytes */
	__u64 hash;	/* of the flow: spreads over receive queues and paths */
	__u8 gue;
	__u8 proto; /* behind the outer IP header */
	/*
	 * DSCP alone: the receiving end does not carry congestion marks back
	 * into the packet, so none may be made (RFC 6040, compatibility mode).
	 */
	__u8 tos;
	__u32 ifindex;	       /* where it leaves */
	struct vlan_tags tags; /* with which */
};

static __always_inline __be16 gue_sport(__u64 hash)
{
	return bpf_htons(0xc000 | (hash >> 32 & 0x3fff));
}

static __always_inline void plan_outer(struct outer *o, const struct svc_table *t,
				       const struct backend *b, const struct packet *p)
{
	o->gue = t->encap == ENCAP_GUE;
	o->overhead = b->flags & BACKEND_V6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	o->proto = p->v6 ? IPPROTO_IPV6 : IPPROTO_IPIP;
	if (o->gue) {
		o->overhead += sizeof(struct udphdr);
		o->proto = IPPROTO_UDP;
	}
	o->len = p->len + o->overhead;
	o->tos = p->tos & DSCP_MASK;
}

static __always_inline enum verdict fib_verdict(long ret)
{
	switch (ret) {
	case BPF_FIB_LKUP_RET_SUCCESS:
		return VERDICT_NONE;
	case BPF_FIB_LKUP_RET_BLACKHOLE:
		return DROP_FIB_BLACKHOLE;
	case BPF_FIB_LKUP_RET_UNREACHABLE:
		return DROP_FIB_UNREACHABLE;
	case BPF_FIB_LKUP_RET_PROHIBIT:
		return DROP_FIB_PROHIBIT;
	case BPF_FIB_LKUP_RET_NOT_FWDED:
		return DROP_FIB_NOT_FORWARDED;
	case BPF_FIB_LKUP_RET_FWD_DISABLED:
		return DROP_FIB_FORWARDING_OFF;
	case BPF_FIB_LKUP_RET_UNSUPP_LWT:
		return DROP_FIB_TUNNEL;
	case BPF_FIB_LKUP_RET_NO_NEIGH:
		return DROP_FIB_NO_NEIGHBOUR;
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		return TX_TOO_BIG;
	}
	return DROP_FIB_ERROR;
}

static __always_inline __u16 vlan_id(__be16 tci)
{
	return bpf_ntohs(tci) & 0xfff;
}

/* The interface by which the kernel would have taken the packet. */
static __always_inline __u32 ingress(struct xdp_md *ctx, const struct packet *p)
{
	struct vlan_key key = { .ifindex = ctx->ingress_ifindex };
	__u32 *sub;

	if (!p->tags.proto[0])
		return key.ifindex;
	key.outer = vlan_id(p->tags.tci[0]);
	if (p->tags.proto[1])
		key.inner = vlan_id(p->tags.tci[1]);
	sub = bpf_map_lookup_elem(&vlan_in, &key);
	return sub ? *sub : key.ifindex;
}

/*
 * How the packet leaves by the interface that the route names: a VLAN's is
 * something of the stack's, and what is below it wants the tags. What came in
 * with tags that are nobody's leaves with them.
 */
static __always_inline void egress(struct xdp_md *ctx, const struct packet *p, __u32 ifindex,
				   __u32 vlans, struct outer *o)
{
	struct vlan_link *sub = NULL;

	o->ifindex = ifindex;
	if (vlans)
		sub = bpf_map_lookup_elem(&vlan_out, &ifindex);
	if (sub) {
		o->ifindex = sub->ifindex;
		o->tags = sub->tags;
	} else if (ifindex == ctx->ingress_ifindex && ingress(ctx, p) == ifindex) {
		o->tags = p->tags;
	}
}

/*
 * Asks the kernel where the outer packet goes: MAC addresses and interface. The
 * length goes in too, so the MTU that is checked is that of the route.
 */
static __always_inline enum verdict route(struct xdp_md *ctx, const struct packet *p,
					  const struct outer *o, const struct svc_table *t,
					  const struct backend *b, struct bpf_fib_lookup *fib)
{
	if (o->len > MAX_IP_LEN)
		return DROP_TOO_BIG;
	fib->l4_protocol = o->proto;
	if (o->gue) {
		fib->sport = gue_sport(o->hash);
		fib->dport = bpf_htons(GUE_PORT);
	}
	fib->tot_len = o->len;
	fib->ifindex = ingress(ctx, p);
	if (b->flags & BACKEND_V6) {
		fib->family = AF_INET6;
		fib->flowinfo = bpf_htonl((__u32)o->tos << 20);
		copy_ip6((__u8 *)fib->ipv6_src, t->src6);
		copy_ip6((__u8 *)fib->ipv6_dst, b->addr);
	} else {
		fib->family = AF_INET;
		fib->tos = o->tos;
		fib->ipv4_src = t->src4;
		fib->ipv4_dst = *(__be32 *)(b->addr + 12);
	}
	return fib_verdict(bpf_fib_lookup(ctx, fib, sizeof(*fib), 0));
}

/* Cuts what the frame holds behind the IP packet: Ethernet padding. */
static __always_inline int trim(struct xdp_md *ctx, const struct packet *p)
{
	int extra = frame_len(ctx) - p->l3 - p->len;

	return extra > 0 ? bpf_xdp_adjust_tail(ctx, -extra) : 0;
}

/* Takes one hop off the packet. The caller has seen that more than one is left. */
static __always_inline int age(struct xdp_md *ctx, const struct packet *p)
{
	struct cursor c = cursor_at(ctx, p->l3);

	if (p->v6) {
		struct ipv6hdr *ip = take(&c, sizeof(*ip));

		if (!ip)
			return -1;
		ip->hop_limit--;
		return 0;
	}
	struct iphdr *ip = take(&c, sizeof(*ip));

	if (!ip)
		return -1;
	/* RFC 1624: the checksum grows by what the TTL's word shrinks. */
	__u32 sum = ip->check + bpf_htons(0x0100);

	ip->check = sum + (sum >= 0xffff);
	ip->ttl--;
	return 0;
}

static __always_inline __u16 ip4_sum(const struct iphdr *ip)
{
	const __u16 *word = (const __u16 *)ip;
	__u32 sum = 0;

#pragma unroll
	for (int i = 0; i < 10; i++)
		sum += word[i];
	sum = (sum & 0xffff) + (sum >> 16);
	sum += sum >> 16;
	return ~sum;
}

static __always_inline int push_ip4(struct cursor *c, const struct outer *o,
				    const struct svc_table *t, const struct backend *b)
{
	struct iphdr *ip = take(c, sizeof(*ip));

	if (!ip)
		return -1;
	ip->version = 4;
	ip->ihl = 5;
	ip->tos = o->tos;
	ip->tot_len = bpf_htons(o->len);
	/* Never fragmented, so it needs no identification (RFC 6864). */
	ip->id = 0;
	ip->frag_off = bpf_htons(0x4000);
	ip->ttl = OUTER_TTL;
	ip->protocol = o->proto;
	ip->check = 0;
	ip->saddr = t->src4;
	ip->daddr = *(__be32 *)(b->addr + 12);
	ip->check = ip4_sum(ip);
	return 0;
}

static __always_inline int push_ip6(struct cursor *c, const struct outer *o,
				    const struct svc_table *t, const struct backend *b)
{
	struct ipv6hdr *ip = take(c, sizeof(*ip));

	if (!ip)
		return -1;
	/* The flow label is entropy for routers (RFC 6438). */
	*(__be32 *)ip = bpf_htonl(6u << 28 | (__u32)o->tos << 20 | (o->hash >> 40 & 0xfffff));
	ip->payload_len = bpf_htons(o->len - sizeof(*ip));
	ip->nexthdr = o->proto;
	ip->hop_limit = OUTER_TTL;
	copy_ip6((__u8 *)&ip->saddr, t->src6);
	copy_ip6((__u8 *)&ip->daddr, b->addr);
	return 0;
}

static __always_inline int push_gue(struct cursor *c, const struct outer *o, __u32 ip_len)
{
	struct udphdr *udp = take(c, sizeof(*udp));

	if (!udp)
		return -1;
	udp->source = gue_sport(o->hash);
	udp->dest = bpf_htons(GUE_PORT);
	udp->len = bpf_htons(o->len - ip_len);
	/* The inner packet has its own; over IPv6 RFC 6935 allows none here. */
	udp->check = 0;
	return 0;
}

/* Writes an Ethernet header with tags; the MAC addresses are in wire order. */
static __always_inline int push_ethernet(struct cursor *c, const __u8 *macs, const struct vlan_tags *tags,
					 __be16 proto)
{
	__u8 *eth = take(c, 2 * ETH_ALEN);
	__be16 *word;

	if (!eth)
		return -1;
	__builtin_memcpy(eth, macs, 2 * ETH_ALEN);
#pragma unroll
	for (int i = 0; i < 2; i++) {
		if (!tags->proto[i])
			break;
		word = take(c, 4);
		if (!word)
			return -1;
		word[0] = tags->proto[i];
		word[1] = tags->tci[i];
	}
	word = take(c, 2);
	if (!word)
		return -1;
	*word = proto;
	return 0;
}

static __always_inline __u32 ethernet_len(const struct vlan_tags *tags)
{
	return sizeof(struct ethhdr) + (tags->proto[0] ? 4 : 0) + (tags->proto[1] ? 4 : 0);
}

/* Puts the outer headers around the packet. -1: no room for them. */
static __always_inline int push(struct xdp_md *ctx, const struct packet *p, const struct outer *o,
				const struct svc_table *t, const struct backend *b,
				const struct bpf_fib_lookup *fib)
{
	int v6 = b->flags & BACKEND_V6;
	__u8 macs[2 * ETH_ALEN];
	struct cursor c;

	if (bpf_xdp_adjust_head(ctx, (int)p->l3 - (int)(o->overhead + ethernet_len(&o->tags))))
		return -1;
	c = cursor(ctx);
	__builtin_memcpy(macs, fib->dmac, ETH_ALEN);
	__builtin_memcpy(macs + ETH_ALEN, fib->smac, ETH_ALEN);
	if (push_ethernet(&c, macs, &o->tags, v6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP)))
		return -1;
	if (v6 ? push_ip6(&c, o, t, b) : push_ip4(&c, o, t, b))
		return -1;
	if (!o->gue)
		return 0;
	return push_gue(&c, o, v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
}

/*
 * Sends a packet to backend id, which is another box, as table t says: the one
 * that chose it. TX_TOO_BIG: it does not fit, and p->room is set to what would.
 */
__noinline enum verdict encapsulate(struct xdp_md *ctx, struct packet *p, const struct svc_table *t,
				    __u32 id, __u32 vlans)
{
	struct bpf_fib_lookup fib = {};
	struct outer o = {};
	struct backend *b;
	enum verdict v;

	if (!p || !t)
		return DROP_NO_TABLE;
	b = bpf_map_lookup_elem(&backend, &id);
	if (!b)
		return DROP_STALE_BACKEND;
	if (p->ttl <= 1)
		return DROP_TTL;
	o.hash = p->hash;
	plan_outer(&o, t, b, p);
	v = route(ctx, p, &o, t, b, &fib);
	if (v == TX_TOO_BIG)
		p->room = fib.mtu_result > o.overhead ? fib.mtu_result - o.overhead : 0;
	if (v != VERDICT_NONE)
		return v;
	egress(ctx, p, fib.ifindex, vlans, &o);
	if (trim(ctx, p) || age(ctx, p) || push(ctx, p, &o, t, b, &fib))
		return DROP_NO_HEADROOM;
	if (o.ifindex == ctx->ingress_ifindex)
		return TX_BACKEND;
	/* With flags 0 it cannot fail before the end of the program. */
	bpf_redirect(o.ifindex, 0);
	return REDIRECT_BACKEND;
}

#endif
